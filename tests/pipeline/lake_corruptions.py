"""Damage to a lake's events, to their places, and to its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.pipeline.history import START_MS
from tests.pipeline.planting import Held, Planter, Row
from unisono.lake.columns import bucket_of
from unisono.lake.storage import BY_PARTITION, LOG
from unisono.lake.write import UNBUCKETED
from unisono.protocol.canonical import canonical, content_hash

Found = set[tuple[str, int | None]]
"""What must be found: kind and committed_id."""

Case = Callable[[Planter, Path], Found]
"""Damages the lake, or the log in the directory; what must be found."""

BUCKETS = 4
SPREAD_TO = 2_400
HALF = 1_200


def setting(event: int, kind: str, *more: str, **columns: Any) -> Case:
    def plant(planter: Planter, _: Path) -> Found:
        planter.change(event, **columns)
        return {(name, event) for name in (kind, *more)}

    return plant


def said_again(id: int, event: Any, kind: str) -> Case:
    """Another event, with the hash it would have: only its meaning is wrong."""

    def plant(planter: Planter, _: Path) -> Found:
        text = canonical(event)
        names = planter.event(id)["partitions"]
        own = event.get("type") if isinstance(event, dict) else None
        planter.change(
            id, event=text.decode(), hash=content_hash(text, canonical(names)), type=own, schema=None
        )
        return {(kind, id)}

    return plant


def respelled(id: int, spell: Callable[[str], str]) -> Case:
    def plant(planter: Planter, _: Path) -> Found:
        planter.change(id, event=spell(planter.event(id)["event"]))
        return {("event", id)}

    return plant


def flipped_hash(planter: Planter, _: Path) -> Found:
    kept = planter.event(101)["hash"]
    planter.change(101, hash=bytes([kept[0] ^ 1]) + kept[1:])
    return {("hash", 101)}


def unsorted_partitions(planter: Planter, _: Path) -> Found:
    rows = (row for held in planter.files(LOG) for row in held.rows)
    row = next(row for row in rows if len(row["partitions"]) > 1)
    planter.change(row["committed_id"], partitions=row["partitions"][::-1])
    return {("partitions", row["committed_id"])}


def partitions_said_twice(planter: Planter, _: Path) -> Found:
    planter.change(481, partitions=planter.event(481)["partitions"] * 2)
    return {("partitions", 481)}


def no_partitions(planter: Planter, _: Path) -> Found:
    planter.change(482, partitions=[])
    return {("partitions", 482), ("hash", 482), ("by_partition", 482)}


def an_id_twice(planter: Planter, _: Path) -> Found:
    planter.change(2_533, id=planter.event(44)["id"])
    return {("id", 2_533)}


def time_back_between_files(planter: Planter, _: Path) -> Found:
    planter.change(1_201, status_updated_at=planter.event(1_200)["status_updated_at"] - 1)
    return {("time", 1_201)}


EVENTS: dict[str, Case] = {
    "hash flipped": flipped_hash,
    "event not canonical": respelled(205, lambda text: text.replace('":', '": ', 1)),
    "event not JSON": respelled(309, lambda text: text[:-1]),
    "event with a key twice": respelled(313, lambda text: text[:-1] + ',"type":"set"}'),
    "partitions unsorted": unsorted_partitions,
    "partitions said twice": partitions_said_twice,
    "no partitions": no_partitions,
    "type column": setting(415, "kind", type="set"),
    "schema column": setting(416, "kind", schema="other"),
    "tree action without an id": said_again(
        501, {"type": "treePush", "payload": {"target": "doc", "value": {}}}, "shape"
    ),
    "type of no profile": said_again(503, {"type": "nonsense", "payload": {}}, "shape"),
    "event that is no object": said_again(504, [1], "shape"),
    "id empty": setting(522, "id", id=""),
    "id too long": setting(523, "id", id="x" * 129),
    "id twice": an_id_twice,
    "no client": setting(541, "column", client_id=None),
    "client empty": setting(545, "column", client_id=""),
    "time back": setting(590, "time", status_updated_at=START_MS),
    "time back between files": time_back_between_files,
    "no time": setting(700, "time", status_updated_at=0),
    "hash too short": setting(710, "column", "hash", hash=b"x"),
}


def _spread(planter: Planter, nth: int) -> tuple[Held, Row]:
    """A file of one bucket, and a row of it."""
    files = [held for held in planter.files(BY_PARTITION) if held.file.bucket != UNBUCKETED]
    held = files[nth % len(files)]
    held.dirty = True
    return held, held.rows[20 + 7 * nth]


def _insert(held: Held, row: Row) -> None:
    """In its place by partition and id; the other rows stay where they are."""
    key = (row["partition"].encode(), row["committed_id"])
    after = (
        n for n, other in enumerate(held.rows) if (other["partition"].encode(), other["committed_id"]) > key
    )
    held.rows.insert(next(after, len(held.rows)), row)
    held.dirty = True


def missing_place(planter: Planter, _: Path) -> Found:
    held, row = _spread(planter, 0)
    held.rows.remove(row)
    return {("by_partition", row["committed_id"])}


def strange_place(planter: Planter, _: Path) -> Found:
    held, row = _spread(planter, 1)
    name = next(other["partition"] for other in held.rows if other["partition"] not in row["partitions"])
    _insert(held, row | {"partition": name})
    return {("by_partition", row["committed_id"])}


def repeated_place(planter: Planter, _: Path) -> Found:
    held, row = _spread(planter, 2)
    _insert(held, dict(row))
    return {("by_partition", row["committed_id"])}


def changed_place(planter: Planter, _data: Path) -> Found:
    _, row = _spread(planter, 3)
    row["client_id"] = "somebody else"
    return {("by_partition", row["committed_id"])}


def changed_fresh_place(planter: Planter, _: Path) -> Found:
    row = next(
        row for held in planter.files(BY_PARTITION) for row in held.rows if row["committed_id"] == 2_700
    )
    planter.change(2_700, tables=(BY_PARTITION,), event=row["event"] + " ")
    return {("by_partition", 2_700)}


def places_out_of_order(planter: Planter, _: Path) -> Found:
    held, row = _spread(planter, 4)
    place = held.rows.index(row)
    while held.rows[place]["partition"] != held.rows[place + 1]["partition"]:
        place += 1
    first, second = held.rows[place : place + 2]
    held.rows[place : place + 2] = [second, first]
    return {("order", first["committed_id"])}


def wrong_bucket(planter: Planter, _: Path) -> Found:
    held, row = _spread(planter, 5)
    held.rows.remove(row)
    other = next(
        other
        for other in planter.files(BY_PARTITION)
        if other.file.bucket not in (UNBUCKETED, held.file.bucket)
    )
    assert bucket_of(row["partition"], BUCKETS) != other.file.bucket
    _insert(other, row)
    return {("bucket", row["committed_id"])}


def false_partition_bounds(planter: Planter, _: Path) -> Found:
    held = planter.file(BY_PARTITION, committed_id=2_999)
    held.said = {"last_partition": "zzzz"}
    return {("statistics", min(row["committed_id"] for row in held.rows))}


def false_row_count(planter: Planter, _: Path) -> Found:
    held = planter.file(LOG, committed_id=1_301)
    held.said = {"rows": len(held.rows) + 1}
    return {("statistics", 1_201)}


def false_id_bounds(planter: Planter, _: Path) -> Found:
    held = planter.file(LOG, committed_id=2_001)
    held.said = {"first_id": 1_900, "last_id": 2_390}
    return {("statistics", 1_801)}


def false_time_bounds(planter: Planter, _: Path) -> Found:
    held = planter.file(LOG, committed_id=1_000)
    held.said = {"times": (START_MS, START_MS + 1)}
    return {("statistics", 601)}


def false_client_bounds(planter: Planter, _: Path) -> Found:
    held = planter.file(LOG, committed_id=500)
    held.said = {"clients": ("client-0", "client-0")}
    return {("statistics", 1)}


def gap(planter: Planter, _: Path) -> Found:
    planter.remove(800)
    return {("gap", 800)}


def longer_gap(planter: Planter, _: Path) -> Found:
    for id in (810, 811, 812):
        planter.remove(id)
    return {("gap", 810)}


def gap_at_the_end(planter: Planter, _: Path) -> Found:
    planter.remove(3_000)
    return {("gap", 3_000)}


def doubled_row(planter: Planter, _: Path) -> Found:
    held = planter.file(LOG, committed_id=820)
    place = next(place for place, row in enumerate(held.rows) if row["committed_id"] == 820)
    held.rows.insert(place, dict(held.rows[place]))
    return {("duplicate", 820)}


def swapped_rows(planter: Planter, _: Path) -> Found:
    held = planter.file(LOG, committed_id=830)
    place = next(place for place, row in enumerate(held.rows) if row["committed_id"] == 830)
    held.rows[place : place + 2] = held.rows[place : place + 2][::-1]
    return {("order", 830)}


def doubled_in_another_file(planter: Planter, _: Path) -> Found:
    extra = Held(planter.files(LOG)[0].file, [dict(planter.event(840))])
    written = planter.write(extra)
    planter.lake.table(LOG).append([written], 3_000, 3_000, {})
    return {("duplicate", 840), ("order", 840)}


PLACES: dict[str, Case] = {
    "row missing in by_partition": missing_place,
    "row in by_partition that does not belong": strange_place,
    "row twice in by_partition": repeated_place,
    "row changed in by_partition": changed_place,
    "row changed in a fresh run": changed_fresh_place,
    "rows of by_partition out of order": places_out_of_order,
    "wrong bucket": wrong_bucket,
    "statistics: partitions": false_partition_bounds,
    "statistics: rows": false_row_count,
    "statistics: ids": false_id_bounds,
    "statistics: times": false_time_bounds,
    "statistics: clients": false_client_bounds,
    "one id missing": gap,
    "ids missing": longer_gap,
    "last id missing": gap_at_the_end,
    "row twice in log": doubled_row,
    "rows of log swapped": swapped_rows,
    "row in two files of log": doubled_in_another_file,
}


def truncated_file(planter: Planter, _: Path) -> Found:
    path = planter.path(planter.file(LOG, committed_id=700))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return {("file", 601)}


def deleted_file(planter: Planter, _: Path) -> Found:
    held, _row = _spread(planter, 0)
    planter.path(held).unlink()
    return {("file", held.file.first_id)}


def overwritten_page(planter: Planter, _: Path) -> Found:
    """A second row group of a file, its compressed text replaced by zeros."""
    held = planter.file(LOG, committed_id=1_500)
    path = planter.path(held)
    rows = pa.Table.from_pylist(held.rows, pq.read_schema(path))
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, row_group_size=200, compression="zstd", store_schema=False)
    content = bytearray(sink.getvalue().to_pybytes())
    group = pq.ParquetFile(pa.BufferReader(bytes(content))).metadata.row_group(1)
    chunk = next(
        group.column(n) for n in range(group.num_columns) if group.column(n).path_in_schema == "event"
    )
    start = chunk.data_page_offset + 100
    content[start : start + 200] = bytes(200)
    path.write_bytes(bytes(content))
    # Its size is no longer what the table says, which is one more thing to find.
    return {("file", 1_401), ("statistics", 1_201)}


def missing_column(planter: Planter, _: Path) -> Found:
    path = planter.path(planter.file(LOG, committed_id=2_000))
    rows = pq.read_table(path).drop_columns(["hash"])
    pq.write_table(rows, path)
    return {("file", 1_801), ("statistics", 1_801)}


def no_statistics(planter: Planter, _: Path) -> Found:
    path = planter.path(planter.file(LOG, committed_id=2_500))
    pq.write_table(pq.read_table(path), path, write_statistics=False, store_schema=False)
    return {("statistics", 2_401)}


def false_footer(planter: Planter, _: Path) -> Found:
    """A footer has no checksum; searches by time skip row groups by it."""
    path = planter.path(planter.file(LOG, committed_id=1))
    content = path.read_bytes()
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    first, later = (time.to_bytes(8, "little") for time in (START_MS + 1, START_MS + 2))
    assert first in content[start:]
    path.write_bytes(content[:start] + content[start:].replace(first, later))
    return {("statistics", 1)}


FILES: dict[str, Case] = {
    "false statistics in a footer": false_footer,
    "truncated file": truncated_file,
    "deleted file": deleted_file,
    "overwritten page": overwritten_page,
    "file without a column": missing_column,
    "file without statistics": no_statistics,
}
