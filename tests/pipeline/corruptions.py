"""Every kind of damage that an audit must find: how it is done, and what must be found of it."""

from __future__ import annotations

import hashlib
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from tests.pipeline.lake_corruptions import EVENTS, FILES, HALF, PLACES, Case, Found
from tests.pipeline.planting import Planter
from unisono.lake.columns import ERASURE_SCHEMA
from unisono.lake.storage import BY_PARTITION, ERASURES, SNAPSHOTS
from unisono.model.pack import pack, unpack
from unisono.protocol.tombstones import tombstone
from unisono.store.port import Snapshot
from unisono.store.sqlite.log import SqliteLog


def in_log(statement: str, *values: Any) -> Callable[[Path], None]:
    def run(directory: Path) -> None:
        connection = sqlite3.connect(directory / "log.db")
        with connection:
            connection.execute(statement, values)
        connection.close()

    return run


def store_differs(id: int, statement: str, *values: Any) -> Case:
    def plant(_: Planter, directory: Path) -> Found:
        in_log(statement, *values, id)(directory)
        return {("copy", id)}

    return plant


def missing_in_the_lake(planter: Planter, _: Path) -> Found:
    planter.remove(444)
    return {("gap", 444), ("copy", 444)}


STORE: dict[str, Case] = {
    "another event in the log": store_differs(
        111, "UPDATE events SET event = ? WHERE committed_id = ?", b'{"payload":{},"type":"set"}'
    ),
    "another client in the log": store_differs(
        333, "UPDATE events SET client_id = ? WHERE committed_id = ?", "nobody"
    ),
    "no such event in the log": store_differs(2_222, "DELETE FROM events WHERE committed_id = ?"),
    "no such event in the lake": missing_in_the_lake,
    "an event that cannot be read in the log": store_differs(
        903, "UPDATE events SET partitions = ? WHERE committed_id = ?", "no JSON"
    ),
    "an id that is no text in the log": store_differs(
        905, "UPDATE events SET id = CAST(? AS TEXT) WHERE committed_id = ?", b"\xff\xfe"
    ),
}


def _changed_state(state: bytes) -> bytes:
    value: Any = unpack(state)
    value["tree"]["doc"]["title"] = "not what was said"
    return pack(value)


def _malformed_state(state: bytes) -> bytes:
    value: Any = unpack(state)
    value["tree"]["doc"]["tree"].append(dict(value["tree"]["doc"]["tree"][0]))
    return pack(value)


def lake_snapshot(
    name: str, at: int, kind: str, *, seal: bool, change: Callable[[bytes], bytes] | None
) -> Case:
    def plant(planter: Planter, _: Path) -> Found:
        row = planter.row(SNAPSHOTS, partition=name, committed_id=at)
        if change is None:
            row["events"] += 1
        else:
            row["state"] = change(row["state"])
        if seal:
            row["hash"] = hashlib.sha256(row["state"]).digest()
        return {(kind, at)}

    return plant


def lake_snapshots_gone(name: str, since: int) -> Case:
    """Those after an id: the table still says that everything is folded."""

    def plant(planter: Planter, _: Path) -> Found:
        for held in planter.files(SNAPSHOTS):
            left = [row for row in held.rows if row["partition"] != name or row["committed_id"] <= since]
            held.dirty = held.dirty or len(left) < len(held.rows)
            held.rows = left
        rows = (row for held in planter.files(BY_PARTITION) for row in held.rows if row["partition"] == name)
        return {("snapshot", min(row["committed_id"] for row in rows if row["committed_id"] > since))}

    return plant


def lake_snapshot_twice(planter: Planter, _: Path) -> Found:
    held = planter.file(SNAPSHOTS, partition="room-010", committed_id=3_000)
    place = next(n for n, row in enumerate(held.rows) if row["partition"] == "room-010")
    held.rows.insert(place, dict(held.rows[place]))
    return {("snapshot", 3_000)}


def lake_snapshot_uncounted(planter: Planter, _: Path) -> Found:
    planter.row(SNAPSHOTS, partition="room-011", committed_id=HALF)["events"] = None
    return {("column", HALF)}


def store_snapshot_past_head(planter: Planter, directory: Path) -> Found:
    store_snapshot("room-012", None, bytes)(planter, directory)
    in_log(
        "UPDATE snapshots SET committed_id = 9999 WHERE partition = "
        "(SELECT number FROM partitions WHERE name = 'room-012')"
    )(directory)
    return {("snapshot", 9_999)}


def store_snapshot(name: str, kind: str | None, change: Callable[[bytes], bytes]) -> Case:
    def plant(planter: Planter, directory: Path) -> Found:
        rows = (row for held in planter.files(SNAPSHOTS) for row in held.rows)
        row = next(row for row in rows if row["partition"] == name and row["committed_id"] == HALF)
        log = SqliteLog.open(directory)
        log.put_snapshots([Snapshot(name, HALF, 0, change(row["state"]), 1)])
        log.close()
        return {(kind, HALF)} if kind is not None else set()

    return plant


STATES: dict[str, Case] = {
    "state changed and sealed anew": lake_snapshot(
        "room-001", 3_000, "snapshot", seal=True, change=_changed_state
    ),
    "state changed": lake_snapshot("room-002", 3_000, "snapshot", seal=False, change=_changed_state),
    "malformed tree": lake_snapshot("room-003", 3_000, "tree", seal=True, change=_malformed_state),
    "wrong count": lake_snapshot("room-004", 3_000, "snapshot", seal=False, change=None),
    "the log's snapshot changed": store_snapshot("room-005", "snapshot", _changed_state),
    "the log's snapshot malformed": store_snapshot("room-006", "tree", _malformed_state),
    "the log's snapshot right": store_snapshot("room-007", None, bytes),
    "no snapshot": lake_snapshots_gone("room-008", 0),
    "no new snapshot": lake_snapshots_gone("room-009", HALF),
    "snapshot twice": lake_snapshot_twice,
    "snapshot without a count": lake_snapshot_uncounted,
    "the log's snapshot past its head": store_snapshot_past_head,
}


def erasures(planter: Planter, _: Path) -> Found:
    """50 and 51 are tombstones, 50 and 52 are recorded."""
    for id in (50, 51):
        planter.change(id, event=tombstone(1_700_000_000_000).decode(), type="erased", schema=None)
    from deltalake import write_deltalake

    rows = [
        {"committed_id": id, "id": str(id), "erased_at": 1, "selected_by": "id", "reason": "asked"}
        for id in (50, 52)
    ]
    write_deltalake(planter.lake.storage.table(ERASURES), pa.Table.from_pylist(rows, ERASURE_SCHEMA))
    return {("erasure", 51), ("erasure", 52)}


ERASED: dict[str, Case] = {"tombstones and records that do not fit": erasures}


def forgotten(id: int, statement: str, *values: Any) -> Case:
    def plant(_: Planter, directory: Path) -> Found:
        in_log(statement, *values, id)(directory)
        return {("pruned", id)}

    return plant


PRUNED: dict[str, Case] = {
    "another hash remembered": forgotten(17, "UPDATE pruned SET hash = ? WHERE committed_id = ?", b"x" * 32),
    "another id remembered": forgotten(18, "UPDATE pruned SET id = ? WHERE committed_id = ?", "another"),
    "another time remembered": forgotten(
        19, "UPDATE pruned SET status_updated_at = ? WHERE committed_id = ?", 5
    ),
    "remembered and still there": forgotten(
        2_000, "INSERT INTO pruned SELECT 'phantom', ?1, 'c', 1, hash FROM events WHERE committed_id = ?1"
    ),
    "remembered and never there": forgotten(9_999, "INSERT INTO pruned VALUES ('ghost', ?1, 'c', 1, x'00')"),
    "not remembered": forgotten(600, "DELETE FROM pruned WHERE committed_id = ?"),
    "differs in what is left": store_differs(
        601, "UPDATE events SET client_id = ? WHERE committed_id = ?", "nobody"
    ),
}


class Group(msgspec.Struct, frozen=True):
    """Damage that can be done to one lake at once, each piece told apart from the others.

    `pruned_to`: how far the log is pruned before.
    """

    cases: dict[str, Case]
    with_store: bool = False
    sample: int | None = 0
    pruned_to: int = 0


GROUPS = {
    "events": Group(EVENTS),
    "places": Group(PLACES),
    "files": Group(FILES),
    "store": Group(STORE, with_store=True),
    "pruned": Group(PRUNED, with_store=True, pruned_to=600),
    "states": Group(STATES, with_store=True, sample=None),
    "erased": Group(ERASED),
}


def at_random(planter: Planter, chance: random.Random, count: int) -> Found:
    """`count` pieces of damage of random kinds to random events."""
    ids = chance.sample(range(2, 2_999, 3), count)
    found: Found = set()
    for id in ids:
        row, kind = (
            planter.event(id),
            chance.choice(("hash", "event", "kind", "gap", "by_partition", "id", "time")),
        )
        match kind:
            case "hash":
                planter.change(id, hash=hashlib.sha256(row["hash"]).digest())
            case "event":
                planter.change(id, event=row["event"].replace(",", ", ", 1))
            case "kind":
                planter.change(id, type="unset")
            case "gap":
                planter.remove(id)
            case "by_partition":
                planter.change(id, tables=(BY_PARTITION,), client_id="another")
            case "id":
                planter.change(id, id=planter.event(id - 1)["id"])
            case "time":
                planter.change(id, status_updated_at=row["status_updated_at"] - 2)
        found.add((kind, id))
    return found
