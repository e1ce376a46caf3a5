"""Rows of sorted files, merged many at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.lake import merge_rows as merging
from unisono.lake.merge_rows import merge_rows

NAMES = ("a", "b", "ba", "é", "語", "\U0001f600")
"""Also where the order of UTF-8 is not that of UTF-16."""

Rows = list[tuple[str, int]]


@st.composite
def files(draw: st.DrawFn) -> list[list[Rows]]:
    """Files in the order of their ids, each sorted, in batches; a partition may go on in the next batch and file."""
    found: list[list[Rows]] = []
    at = 0
    for names in draw(st.lists(st.lists(st.sampled_from(NAMES), max_size=12), max_size=6)):
        rows = [(name, at + place) for place, name in enumerate(sorted(names, key=str.encode), 1)]
        at += len(rows)
        cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=5)))
        found.append([rows[start:end] for start, end in pairwise([0, *cuts, len(rows)])])
    return found


def batch(rows: Rows) -> pa.RecordBatch:
    columns = {
        "partition": pa.array([name for name, _ in rows], pa.string()),
        "committed_id": pa.array([id for _, id in rows], pa.int64()),
        "partitions": pa.array([[name, "and"] for name, _ in rows], pa.list_(pa.string())),
    }
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize("bytes_max", [merging.ROUND_BYTES_MAX, 40])
@given(given_files=files())
def test_all_rows_come_in_order(bytes_max: int, given_files: list[list[Rows]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "ROUND_BYTES_MAX", bytes_max)
        merged = list(merge_rows([map(batch, each) for each in given_files]))
    found = [(row["partition"], row["committed_id"]) for some in merged for row in some.to_pylist()]
    rows = [row for each in given_files for some in each for row in some]
    assert found == sorted(rows, key=lambda row: (row[0].encode(), row[1]))
    assert all(row["partitions"][0] == row["partition"] for some in merged for row in some.to_pylist())
    assert all(some.num_rows for some in merged)


def test_a_round_has_a_batch_of_each_file() -> None:
    """So the rounds do not become more with the files, which end their batches at different partitions."""

    def batches(file: int) -> Iterator[pa.RecordBatch]:
        names = [f"{number:04}" for number in range(file, 4_000, 20)]
        for start in range(0, len(names), 50):
            yield batch([(name, file) for name in names[start : start + 50]])

    merged = list(merge_rows([batches(file) for file in range(20)]))
    assert sum(some.num_rows for some in merged) == 4_000
    assert len(merged) <= 5


def test_large_rows_are_not_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "READY_BYTES_MAX", 1)
    read = []

    def batches(file: int) -> Iterator[pa.RecordBatch]:
        for start in range(0, 30, 10):
            read.append((file, start))
            yield batch([(f"{number:03}", file) for number in range(start + file, start + 10 + file)])

    merged = merge_rows([batches(0), batches(1)])
    assert next(merged).num_rows == 18, "the first file may have more of the last partition"
    assert next(merged).num_rows
    assert read == [(0, 0), (1, 0), (0, 10)]


def test_rows_come_before_all_files_are_read() -> None:
    """Two batches of each file are in memory at most."""
    read = []

    def batches(file: int) -> object:
        for start in range(0, 100, 10):
            read.append((file, start))
            yield batch([(f"{number:03}", 2 * number + file) for number in range(start, start + 10)])

    merged = merge_rows([batches(0), batches(1)])  # type: ignore[list-item]
    assert next(merged).num_rows >= 10
    assert len(read) <= 4
