"""Ids of events."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

from unisono.client.ids import IdMaker, new_id


def test_an_id_is_a_uuid_of_version_7() -> None:
    made = uuid.UUID(new_id())
    assert made.version == 7
    assert made.variant == uuid.RFC_4122


def test_ids_rise_within_a_millisecond_and_when_the_clock_is_set_back() -> None:
    times = iter([5] * 10_000 + [4] * 100 + [6, 7])
    make = IdMaker(lambda: next(times))
    made = [make() for _ in range(10_102)]
    assert made == sorted(set(made))


def test_ids_carry_the_time() -> None:
    make = IdMaker(lambda: 1_700_000_000_000)
    assert uuid.UUID(make()).int >> 80 == 1_700_000_000_000


def test_ids_of_many_threads_are_all_different() -> None:
    make = IdMaker()
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: make(), range(5_000)))
    assert len(set(made)) == 5_000
