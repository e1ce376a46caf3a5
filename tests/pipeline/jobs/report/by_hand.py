"""A history, and the figures of its report computed by hand."""

from __future__ import annotations

import random
import uuid
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from unisono.pipeline.jobs.report.steps import DAY_MS
from unisono.pipeline.jobs.report.tables import Bin
from unisono.pipeline.open_log import sqlite_uri
from unisono.protocol.canonical import canonical, content_hash
from unisono.store.port import Record
from unisono.store.sqlite.log import SqliteLog

START_MS = 1_790_000_000_000
EVENTS = 900
SCRIPT = "<script>alert('x')</script>"
WITHIN_MS = 4_000


def event_of(chance: random.Random) -> dict[str, Any]:
    node = f"n{chance.randrange(4)}"
    text = "t" * int(chance.lognormvariate(3.5, 1.5))
    kind = chance.choice(
        ["added", "edited", "said", "set", "unset", "push", "update", "move", "delete", "init"]
    )
    if kind in ("added", "edited"):
        id: Any = chance.choice([node, 7])
        return {"type": "event", "payload": {"schema": f"note.{kind}", "data": {"id": id, "text": text}}}
    if kind == "said":
        return {
            "type": "event",
            "payload": {"schema": "said", "data": chance.choice([text, [text], {"t": 1}])},
        }
    if kind in ("set", "unset"):
        return {"type": kind, "payload": {"target": "doc.title", "value": {"id": node, "text": text}}}
    if kind == "init":
        return {"type": "init", "payload": {"value": {"text": text}}}
    if kind == "push":
        return {"type": "treePush", "payload": {"target": "doc", "value": {"id": node, "text": text}}}
    action = {"update": "treeUpdate", "move": "treeMove", "delete": "treeDelete"}[kind]
    return {"type": action, "payload": {"target": "doc", "value": {"text": text}, "options": {"id": node}}}


def make_records(count: int = EVENTS, days: float = 40, seed: int = 3) -> list[Record]:
    chance = random.Random(seed)
    times = sorted(START_MS + int(chance.random() * days * DAY_MS) for _ in range(count // 2))
    times = sorted(times + [time + chance.randrange(8_000) for time in times])
    names = ["room-a", "room-b", "room-c", SCRIPT, "日本", "$a$ & $b$", "r" * 120]
    records: list[Record] = []
    for number, at in enumerate(times, 1):
        drafted = at - int(chance.lognormvariate(6, 3)) + chance.choice([0, 0, 0, 50])
        id = str(uuid.UUID(int=drafted << 80 | 7 << 76 | chance.getrandbits(12) << 64 | 2 << 62 | number))
        if chance.random() < 0.2:
            id = f"{chance.getrandbits(128):032x}-{number}"
        elif chance.random() < 0.2:
            id = str(uuid.UUID(int=chance.getrandbits(128), version=4))
        picked = {chance.choice(names[: chance.randrange(1, len(names) + 1)])}
        while chance.random() < 0.2:
            picked.add(chance.choice(names))
        partitions = tuple(sorted(picked, key=str.encode))
        event = event_of(chance)
        if records and chance.random() < 0.5:  # somebody is at the same item
            partitions, event = records[-1].partitions, msgspec.json.decode(records[-1].event)
        body = canonical(event)
        client = f"client-{chance.randrange(1, 5)}"
        hashed = content_hash(body, canonical(list(partitions)))
        records.append(Record(number, id, client, partitions, body, hashed, at))
    return records


def store_of(directory: Path, records: Sequence[Record]) -> str:
    log = SqliteLog.open(directory)
    for start in range(0, len(records), 500):
        log.begin([])
        log.commit(records[start : start + 500])
    log.close()
    return sqlite_uri(directory)


def kind(record: Record) -> tuple[str, str | None]:
    event = msgspec.json.decode(record.event)
    return event["type"], event["payload"].get("schema") if event["type"] == "event" else None


def item_of(record: Record) -> tuple[str, str] | None:
    event = msgspec.json.decode(record.event)
    payload = event["payload"]
    match event["type"]:
        case "event":
            data = payload["data"]
            known = isinstance(data, dict) and "id" in data
            return (f"event {payload['schema'].rpartition('.')[0]}", str(data["id"])) if known else None
        case "set" | "unset":
            return f"path {payload['target']}", ""
        case "init":
            return "path ", ""
        case "treePush":
            return f"tree {payload['target']}", payload["value"]["id"]
        case _:
            return f"tree {payload['target']}", payload["options"]["id"]


def contested(records: Sequence[Record]) -> dict[tuple[str, tuple[str, str]], list[tuple[str, str, int]]]:
    """(partition, item) → (client, the other, gap) for each contested edit."""
    last: dict[tuple[str, tuple[str, str]], Record] = {}
    found = defaultdict(list)
    for record in records:
        named = item_of(record)
        if named is None:
            continue
        for partition in record.partitions:
            before = last.get((partition, named))
            if before is not None and before.client_id != record.client_id:
                gap = record.status_updated_at - before.status_updated_at
                if gap <= WITHIN_MS:
                    found[partition, named].append((record.client_id, before.client_id, gap))
            last[partition, named] = record
    return found


def bins(values: Sequence[int], edges: Sequence[int]) -> list[Bin]:
    bounds = [*edges, None]
    counted = [
        Bin(low, high, sum(value >= low and (high is None or value < high) for value in values))
        for low, high in zip(edges, bounds[1:], strict=True)
    ]
    while counted and not counted[0].count:
        counted.pop(0)
    while counted and not counted[-1].count:
        counted.pop()
    return counted


def three_digits(value: int) -> int:
    cut = max(0, len(str(value)) - 3)
    power: int = 10**cut
    return value // power * power


def ranked(values: Sequence[int], part: int) -> int:
    cut = sorted(values)[-(-len(values) * part // 100) - 1]
    return three_digits(cut)


def delays_of(records: Sequence[Record]) -> list[int]:
    found = []
    for record in records:
        try:
            id = uuid.UUID(record.id)
        except ValueError:
            continue
        if id.version == 7 and str(id) == record.id:
            found.append(record.status_updated_at - (id.int >> 80))
    return found
