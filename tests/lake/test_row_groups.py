"""What is known of row groups without reading their rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from unisono.lake.row_groups import NO_NAME, Footer, RowGroup


def footer(columns: dict[str, list[Any]], **options: Any) -> Footer:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, row_group_size=2, **options)
    return Footer(pq.ParquetFile(pa.BufferReader(sink.getvalue())).metadata)


def test_groups_of_a_file_sorted_by_partition() -> None:
    found = list(footer({"partition": ["a", "a", "b", "\u00e9"], "committed_id": [3, 7, 1, 9]}).row_groups())
    assert [(group.number, group.rows, group.first_id, group.last_id) for group in found] == [
        (0, 2, 3, 7),
        (1, 2, 1, 9),
    ]
    assert [(group.first_name, group.last_name) for group in found] == [(b"a", b"a"), (b"b", b"\xc3\xa9")]


def test_groups_of_the_log_have_no_partition() -> None:
    (first, second) = footer({"committed_id": [1, 2, 3]}).row_groups()
    assert (first.first_name, first.last_name) == (NO_NAME, NO_NAME)
    assert (second.rows, second.first_id, second.last_id) == (1, 3, 3)


def test_ranges_exclude_their_start_and_include_their_end() -> None:
    group = RowGroup(0, 3, 100, 5, 8)
    assert [group.overlaps(since, upto) for since, upto in ((7, 20), (8, 20), (0, 5), (0, 4))] == [
        True,
        False,
        True,
        False,
    ]
    assert [group.within(since, upto) for since, upto in ((4, 8), (5, 8), (4, 7))] == [True, False, False]


def test_bounds_are_none_where_the_footer_does_not_say() -> None:
    known = footer({"committed_id": [1, 2, 3], "event": ["x", "y", "z"]}, write_statistics=["committed_id"])
    assert [known.bounds(group, "committed_id") for group in range(len(known))] == [(1, 2), (3, 3)]
    assert known.bounds(0, "event") is None
    assert known.bounds(0, "partition") is None
    assert "event" in known
    assert "partition" not in known
    assert known.uncompressed_bytes(0, "event") > 0
