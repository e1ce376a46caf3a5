"""Histories for the pipeline's tests: made from a seed, written through the real log, compared row by row."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from unisono.lake.columns import bucket_of, type_and_schema
from unisono.lake.lake import Lake
from unisono.protocol.canonical import canonical, content_hash
from unisono.store.port import CommitLog, Record
from unisono.store.sqlite.log import SqliteLog, SqliteReader

GROUP = 1_000
START_MS = 1_700_000_000_000
NAMES = ("plain", "with space", "slash/name", "ünï-cødé", "Ωmega", "emoji-🎻", "z" * 128, "percent%20", "a=b")

Row = dict[str, Any]

AUTHORS = ("", '{"user_id":"ann"}', '{"claims":{"role":"editor"},"user_id":"é"}')


def make_record(committed_id: int, chance: random.Random, *, author: str | None = None) -> Record:
    """One event of either profile, in one to three partitions, some of them with awkward names."""
    shape = committed_id % 4
    text = " ".join(chance.choices(("lorem", "ipsum", "dolor", "sit", "amet", "“quoted”", "日本"), k=8))
    if shape == 0:
        event: Any = {
            "type": "event",
            "payload": {"schema": f"note.{committed_id % 3}", "data": {"text": text}},
        }
    elif shape == 1:
        event = {"type": "set", "payload": {"target": "doc.title", "value": text, "schema": "not one"}}
    elif shape == 2:
        event = {
            "type": "treePush",
            "payload": {"target": "doc", "value": {"id": f"n{committed_id}", "text": text}},
        }
    else:
        event = {"type": "event", "payload": {"schema": "counted", "data": [committed_id, 1.5, None, True]}}
    names = {chance.choice(NAMES) if chance.random() < 0.2 else f"room-{chance.randrange(50):03d}"}
    while chance.random() < 0.15:
        names.add(f"room-{chance.randrange(50):03d}")
    partitions = sorted(names, key=str.encode)
    body = canonical(event)
    return Record(
        committed_id,
        f"{chance.getrandbits(128):032x}",
        f"client-{chance.randrange(20)}",
        tuple(partitions),
        body,
        content_hash(body, canonical(list(partitions))),
        START_MS + committed_id,
        AUTHORS[committed_id % len(AUTHORS)] if author is None else author,
    )


def append(log: CommitLog, count: int, seed: int = 1) -> list[Record]:
    """Commit `count` more events in groups."""
    made: list[Record] = []
    while len(made) < count:
        first = log.begin([]).head + 1
        chance = random.Random(f"{seed}-{first}")
        group = [make_record(first + place, chance) for place in range(min(GROUP, count - len(made)))]
        log.commit(group)
        log.maintain()
        made += group
    return made


def make_store(directory: Path, count: int, seed: int = 1) -> list[Record]:
    """A log of its own with `count` events; what is in it."""
    log = SqliteLog.open(directory)
    try:
        return append(log, count, seed)
    finally:
        log.close()


def read_store(directory: Path) -> list[Record]:
    reader = SqliteReader.open(directory)
    try:
        return list(reader.scan(0, reader.head(), limit=10_000_000))
    finally:
        reader.close()


def row_of(record: Record) -> Row:
    """A record as a row of the data source and of the table `log`."""
    kind, schema = type_and_schema(record.event)
    return {
        "committed_id": record.committed_id,
        "id": record.id,
        "client_id": record.client_id,
        "partitions": list(record.partitions),
        "event": record.event.decode(),
        "type": kind,
        "schema": schema,
        "status_updated_at": record.status_updated_at,
        "hash": record.hash,
        "author": record.author or None,
    }


def require_exact(lake: Lake, records: Sequence[Record]) -> None:
    """Both tables hold exactly `records`, each once: seen by a plain Delta reader, which knows nothing of us."""
    log = DeltaTable(lake.storage.table("log")).to_pyarrow_table().to_pylist()
    assert [row["committed_id"] for row in sorted(log, key=_by_id)] == [r.committed_id for r in records]
    assert sorted(log, key=_by_id) == [row_of(record) for record in records]
    table = DeltaTable(lake.storage.table("by_partition")).to_pyarrow_table()
    rows = sorted(table.to_pylist(), key=lambda row: (row["partition"].encode(), row["committed_id"]))
    buckets = lake.view().buckets
    for row in rows:
        assert row.pop("bucket") in (-1, bucket_of(row["partition"], buckets))
    expected = [{"partition": name, **row_of(record)} for record in records for name in record.partitions]
    assert rows == sorted(expected, key=lambda row: (row["partition"].encode(), row["committed_id"]))


def _by_id(row: Row) -> int:
    return int(row["committed_id"])
