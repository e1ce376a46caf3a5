from __future__ import annotations

import pytest

from unisono.front.backpressure import Queued
from unisono.protocol.errors import RateLimited


@pytest.mark.req("LIM-05")
def test_a_request_counts_until_it_is_answered() -> None:
    queued = Queued(10, 1000)
    queued.add(1, 4, 400)
    queued.add(2, 3, 300)
    queued.add(1, 2, 200)
    queued.check(1, 100)
    for items, size in ((2, 1), (1, 101)):
        with pytest.raises(RateLimited):
            queued.check(items, size)
    queued.answered(1)
    assert (queued.items, queued.bytes) == (5, 500)
    queued.answered(2)
    queued.answered(1)
    assert (queued.items, queued.bytes) == (0, 0)


@pytest.mark.req("LIM-05")
def test_answers_to_what_became_void_give_nothing_back() -> None:
    queued = Queued(10, 1000)
    queued.add(1, 4, 400)
    queued.void()
    queued.add(2, 1, 100)
    queued.answered(1)  # its answer was under way when everything became void
    assert (queued.items, queued.bytes) == (1, 100)
