"""Logs written past any authority: random histories over several partitions, and snapshots at chosen places."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import orjson

from unisono.model.model import Model, open_model
from unisono.model.pack import pack
from unisono.model.partition import PartitionState
from unisono.protocol.canonical import canonical, content_hash
from unisono.store.port import Record, Snapshot
from unisono.store.sqlite.log import SqliteLog

GROUP = 500


def record(committed_id: int, partitions: Iterable[str], event: Any, id: str = "") -> Record:
    names = tuple(sorted(partitions))
    text = canonical(event)
    hash = content_hash(text, canonical(list(names)))
    return Record(committed_id, id or f"planted-{committed_id}", "planter", names, text, hash, committed_id)


def history(random: Random, partitions: Sequence[str], events: int, first: int = 1) -> list[Record]:
    """Tree actions and settings, most of them in one partition, some in several; some change nothing."""
    records: list[Record] = []
    for number in range(first, first + events):
        several = random.randint(2, len(partitions)) if random.random() < 0.3 else 1
        records.append(record(number, random.sample(partitions, several), _event(random, number)))
    return records


def _event(random: Random, number: int) -> dict[str, Any]:
    kind = random.random()
    if kind < 0.4:
        options = {"parent": random.choice(["_root", f"n{number - 1}", f"n{number - 2}"]), "position": "last"}
        payload = {"target": "outline", "value": {"id": f"n{number}", "at": number}, "options": options}
        return {"type": "treePush", "payload": payload}
    if kind < 0.5:
        return {"type": "treeDelete", "payload": {"target": "outline", "options": {"id": f"n{number - 1}"}}}
    target = random.choice(["a", "b", "a.c", f"k{number % 7}"])
    if kind < 0.6:
        return {"type": "unset", "payload": {"target": target}}
    return {"type": "set", "payload": {"target": target, "value": {"n": number, "grows": {str(number): "ü"}}}}


def plant(directory: Path, records: Sequence[Record], snapshots: Sequence[Snapshot] = ()) -> None:
    """Append records, whose ids follow the log's, and store snapshots."""
    log = SqliteLog.open(directory)
    try:
        for start in range(0, len(records), GROUP):
            log.begin([])
            log.commit(records[start : start + GROUP])
        if snapshots:
            log.put_snapshots(snapshots)
    finally:
        log.close()


def state_of(
    records: Iterable[Record], partition: str, upto: int = 2**53, model: Model | None = None
) -> PartitionState:
    """The plainest way from a history to the state of a partition."""
    model, state = model or open_model(), PartitionState()
    for each in records:
        if partition in each.partitions and each.committed_id <= upto:
            model.apply_committed(state, orjson.loads(each.event))
    return state


def snapshot_of(
    records: Iterable[Record], partition: str, upto: int, version: int = 0, model: Model | None = None
) -> Snapshot:
    return Snapshot(partition, upto, version, pack(state_of(records, partition, upto, model).dump()), 1)
