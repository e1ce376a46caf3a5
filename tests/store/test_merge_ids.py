"""The ids of many partitions in one order, and how many the index is asked for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.store import merge_ids as merging
from unisono.store.merge_ids import EACH_MIN, GROWTH, IdMerge, IdMerges, key_of


class Index:
    """The ids of each partition, and what was asked of them."""

    def __init__(self, partitions: Mapping[int, Sequence[int]]) -> None:
        self.partitions = partitions
        self.probes = self.given = self.rounds = 0

    def fetch(self, asked: Sequence[tuple[int, int]], until: int, each: int) -> dict[int, list[int]]:
        found = {}
        self.rounds += 1
        for number, after in asked:
            ids = self.partitions[number]
            some = [id for id in ids[bisect_right(ids, after) :][:each] if id <= until]
            self.probes += 1
            self.given += len(some)
            if some:
                found[number] = some
        return found

    def due(self, after: Mapping[int, int], upto: int) -> list[int]:
        return sorted({id for n, ids in self.partitions.items() for id in ids if after[n] < id <= upto})


def read(index: Index, after: Mapping[int, int], upto: int, limit: int) -> list[int]:
    """All pages of one merge, one after the other."""
    merge, got = IdMerge(after, upto), list[int]()
    while ids := merge.first(limit, index.fetch)[0]:
        got += ids
        merge.drop(ids[-1])
    return got


@pytest.mark.req("SYNC-01", "SYNC-12")
@given(
    partitions=st.dictionaries(
        st.integers(0, 9), st.sets(st.integers(1, 200), max_size=60).map(sorted), min_size=1
    ),
    snapshot_starts=st.dictionaries(st.integers(0, 9), st.integers(0, 220)),
    since=st.integers(0, 200),
    upto=st.integers(0, 220),
    limit=st.integers(1, 40),
)
def test_every_id_that_is_due_comes_once_and_in_order(
    partitions: dict[int, list[int]], snapshot_starts: dict[int, int], since: int, upto: int, limit: int
) -> None:
    index = Index(partitions)
    after = {number: max(since, snapshot_starts.get(number, 0)) for number in partitions}
    assert read(index, after, upto, limit) == index.due(after, upto)


@pytest.mark.req("SYNC-10")
@pytest.mark.parametrize("limit", [51, 501, 1001])
@pytest.mark.parametrize("dense", [1, 10, 1000], ids=lambda dense: f"{dense} dense")
def test_a_history_of_a_thousand_partitions_costs_its_events_and_a_probe_each(limit: int, dense: int) -> None:
    chance = Random(dense)
    partitions: dict[int, list[int]] = {number: [] for number in range(1000)}
    for id in range(1, 30_001):
        partitions[chance.randrange(dense)].append(id)
        if chance.random() < 0.01:
            rare = partitions[chance.randrange(1000)]
            if not rare or rare[-1] != id:
                rare.append(id)
    index = Index(partitions)
    first = IdMerge(dict.fromkeys(partitions, 0), 30_000)
    first.first(limit, index.fetch)
    assert index.given <= GROWTH * (limit + 1000 * EACH_MIN), "of one page"
    assert index.rounds <= 8
    index.probes = index.given = index.rounds = 0
    got = read(index, dict.fromkeys(partitions, 0), 30_000, limit)
    assert got == index.due(dict.fromkeys(partitions, 0), 30_000)
    pages = -(-30_000 // limit)
    assert index.given <= 2 * 30_300, "what was found for a page and is not in it is kept for the next"
    assert index.probes <= 2 * 1000 + 30_300 + pages * 4 * dense
    if dense < 1000:
        assert index.probes < pages * 1000 / 2, "partitions that have nothing left are not looked at again"


@pytest.mark.req("LIM-05")
def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "KEPT_MAX", 100)
    merges: IdMerges[int] = IdMerges()
    names = tuple(f"n{number}" for number in range(10))
    for upto in range(1, 21):
        merges.put(key_of(names, {}, 0, upto), IdMerge(dict.fromkeys(range(10), 0), upto))
    assert [upto for upto in range(1, 21) if merges.take(key_of(names, {}, 0, upto)) is not None] == [
        *range(16, 21)
    ]
    merges.put(key_of(names, {}, 0, 1), IdMerge(dict.fromkeys(range(200), 0), 1))
    assert merges.take(key_of(names, {}, 0, 1)) is None, "one that is too large is not kept"
