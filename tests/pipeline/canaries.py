"""A log with things in it that must not be found later: planted by one client, looked for in every file."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq

from tests.pipeline.history import START_MS, make_record
from unisono.model.model import open_model
from unisono.model.pack import pack
from unisono.model.partition import PartitionState
from unisono.protocol.canonical import canonical, content_hash
from unisono.store.port import CommitLog, Record

CANARY = "CANARY"
CULPRIT = "client-canary"
EVERY = 40


def canary(number: int) -> str:
    """No two are alike, so that each must be found or missed on its own."""
    return f"{CANARY}-{number:06d}-{random.Random(number).getrandbits(96):024x}"


def plant(committed_id: int) -> Record:
    """An event of the culprit: of either profile, in one partition or two, now and then over many pages."""
    text = canary(committed_id)
    shape = committed_id // EVERY % 4
    if shape == 0:
        event: Any = {"type": "event", "payload": {"schema": "note.0", "data": {"text": text, text: 1}}}
    elif shape == 1:
        event = {
            "type": "treePush",
            "payload": {"target": "doc", "value": {"id": f"n{committed_id}", "text": text}},
        }
    elif shape == 2:
        event = {"type": "set", "payload": {"target": "title", "value": text, "options": {"replace": True}}}
    else:
        event = {
            "type": "event",
            "payload": {"schema": "long", "data": [f"{text} filling {i}" for i in range(300)]},
        }
    partitions = ("emoji-🎻", "room-007") if shape < 2 else (f"room-{committed_id % 5:03d}",)
    body = canonical(event)
    return Record(
        committed_id,
        f"planted-{committed_id}",
        CULPRIT,
        partitions,
        body,
        content_hash(body, canonical(list(partitions))),
        START_MS + committed_id,
    )


def append(log: CommitLog, count: int, seed: int = 1) -> list[Record]:
    """Commit `count` more events, each fortieth of them planted."""
    made: list[Record] = []
    while len(made) < count:
        first = log.begin([]).head + 1
        chance = random.Random(f"{seed}-{first}")
        group = [
            plant(number) if number % EVERY == 0 else make_record(number, chance)
            for number in range(first, first + min(100, count - len(made)))
        ]
        log.commit(group)
        log.maintain()
        made += group
    return made


def planted(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.client_id == CULPRIT]


def holders(*directories: Path) -> Iterator[str]:
    """Every file that has a canary in it, as bytes or, in Parquet, when decoded."""
    for directory in directories:
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                if CANARY.encode() in path.read_bytes():
                    yield str(path)
                elif path.suffix == ".parquet" and CANARY in _decoded(path):
                    yield f"{path} (decoded)"


def _decoded(path: Path) -> str:
    with pq.ParquetFile(path) as parquet:
        return repr(parquet.read().to_pylist())


def folded(records: Sequence[Record], name: str, upto: int) -> bytes:
    """The state of a partition, as any server would pack it."""
    model, state = open_model(), PartitionState()
    for record in records:
        if record.committed_id <= upto and name in record.partitions:
            model.apply_committed(state, msgspec.json.decode(record.event))
    state.settle()
    return pack(state.dump())
