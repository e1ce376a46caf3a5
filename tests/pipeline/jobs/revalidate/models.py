"""A model and its changes, a history, and the outcome of each computed in one line."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pyarrow.parquet as pq

from tests.lake.lakes import HERE
from tests.pipeline.jobs.report.by_hand import store_of
from unisono.lake.lake import Lake
from unisono.model.model import CANONICAL, COMPATIBILITY, Model
from unisono.model.pack import pack
from unisono.model.partition import PartitionState
from unisono.model.rules import RuleFailed
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.revalidate.job import Revalidation
from unisono.pipeline.jobs.revalidate.result import EventKind
from unisono.protocol.canonical import canonical, content_hash
from unisono.protocol.tombstones import is_tombstone, tombstone
from unisono.samples import sample_model
from unisono.store.port import Record

START_MS = 1_790_000_000_000
Edit = Callable[[Path], None]


def model_at(place: Path, version: int, *edits: Edit) -> Path:
    """The sample model, changed."""
    shutil.copytree(sample_model(), place)
    replaced(place / "model.toml", "model_version = 1", f"model_version = {version}")
    for edit in edits:
        edit(place)
    return place


def replaced(path: Path, old: str, new: str) -> None:
    before = path.read_text()
    assert old in before
    path.write_text(before.replace(old, new))


def tightened(place: Path) -> None:
    schema = place / "schemas" / "note.added.json"
    document = json.loads(schema.read_text())
    document["properties"]["text"] = {"type": "string", "maxLength": 12}
    schema.write_text(json.dumps(document))


def removed(place: Path) -> None:
    (place / "schemas" / "note.removed.json").unlink()
    replaced(place / "rules.py", '@rules.check("note.edited", "note.removed")', '@rules.check("note.edited")')
    replaced(place / "rules.py", '@rules.reduce("note.removed")', "")
    replaced(place / "rules.py", '@rules.undo("note.removed")', "")


def other_reducer(place: Path) -> None:
    replaced(
        place / "rules.py",
        'state["title"] = event.data["title"]',
        'state["title"] = event.data["title"].upper()',
    )


def new_rule(place: Path) -> None:
    with (place / "rules.py").open("a") as rules:
        rules.write(
            '\n\n@rules.check("outline.renamed")\n'
            "def another_title(state: dict[str, Any], event: Event) -> list[FieldError]:\n"
            '    same = state.get("title") == event.data["title"]\n'
            '    return [refuse("title", "it is called so already")] if same else []\n'
        )


def failing_reducer(place: Path) -> None:
    replaced(
        place / "rules.py",
        "    note.update({",
        '    assert event.data.get("text") != "word word", "no"\n    note.update({',
    )


def no_checks(place: Path) -> None:
    """Notes may be edited and removed though they are not there."""
    replaced(place / "rules.py", 'if event.data["id"] not in state.get("notes", {}):', "if False:")
    replaced(place / "rules.py", 'if event.data["id"] in state.get("notes", {}):', "if False:")
    replaced(
        place / "rules.py",
        'note = state["notes"][event.data["id"]]',
        'note = state.setdefault("notes", {}).setdefault(event.data["id"], {})',
    )
    replaced(
        place / "rules.py",
        'del state["notes"][event.data["id"]]',
        'state.setdefault("notes", {}).pop(event.data["id"], None)',
    )


def event_of(chance: random.Random) -> dict[str, Any]:
    note, words = f"n{chance.randrange(5)}", " ".join(["word"] * chance.randrange(1, 5))
    made: list[dict[str, Any]] = [
        {"type": "event", "payload": {"schema": "note.added", "data": {"id": note, "text": words}}},
        {"type": "event", "payload": {"schema": "note.edited", "data": {"id": note, "text": words}}},
        {"type": "event", "payload": {"schema": "note.removed", "data": {"id": note}}},
        {
            "type": "event",
            "payload": {"schema": "outline.renamed", "data": {"title": f"t{chance.randrange(3)}"}},
        },
        {"type": "treePush", "payload": {"target": "explorer", "value": {"id": note, "text": words}}},
        {
            "type": "treeUpdate",
            "payload": {"target": "explorer", "value": {"text": words}, "options": {"id": note}},
        },
        {"type": "treeDelete", "payload": {"target": "explorer", "options": {"id": note}}},
        {"type": "event", "payload": {"schema": "unheard.of", "data": 1}},
    ]
    return chance.choices(made, [8, 8, 5, 6, 4, 4, 3, 1])[0]


def record(
    number: int, partitions: Iterable[str], event: dict[str, Any], body: bytes | None = None
) -> Record:
    names = tuple(sorted(set(partitions), key=str.encode))
    text_ = canonical(event)
    hashed = content_hash(text_, canonical(list(names)))
    return Record(
        number, f"id-{number}", f"client-{number % 3}", names, body or text_, hashed, START_MS + number
    )


def make_history(count: int, rooms: int = 9, seed: int = 5) -> list[Record]:
    """Events of which each model refuses some; a third are in several partitions, one is erased."""
    chance = random.Random(seed)
    names = [f"room-{number}" for number in range(rooms)] + ["<b>Ω</b>"]
    made = []
    for number in range(1, count + 1):
        picked = {chance.choice(names)}
        while chance.random() < 0.3:
            picked.add(chance.choice(names))
        erased = tombstone(START_MS) if number % 97 == 0 else None
        made.append(record(number, picked, event_of(chance), erased))
    return made


def lake_of(folder: Path, records: Sequence[Record], events_per_file: int = 400) -> Lake:
    store, lake = store_of(folder / "data", records), Lake.at(str(folder / "lake"))
    lake.make(4)
    export(HERE, store, lake, events_per_file=events_per_file)
    return lake


class ServerOutcome(msgspec.Struct):
    """What one model does with a history."""

    rejected: set[int]
    skipped: set[tuple[str, int]]
    states: dict[str, bytes]


def in_one_line(model: Model, records: Sequence[Record]) -> ServerOutcome:
    judged: dict[str, PartitionState] = {}
    replayed: dict[str, PartitionState] = {}
    told = ServerOutcome(set(), set(), {})
    for each in records:
        if is_tombstone(each.event):
            continue
        event = orjson.loads(each.event)
        if not taken(model, [judged.setdefault(name, PartitionState()) for name in each.partitions], event):
            told.rejected.add(each.committed_id)
        for name in each.partitions:
            if not model.apply_committed(replayed.setdefault(name, PartitionState()), event):
                told.skipped.add((name, each.committed_id))
    told.states = {name: pack(state.dump()) for name, state in replayed.items()}
    return told


def taken(model: Model, states: Sequence[PartitionState], event: dict[str, Any]) -> bool:
    profile = CANONICAL if event["type"] == "event" else COMPATIBILITY
    if model.shape(profile, event) or any(model.refusals(profile, state, event) for state in states):
        return False
    marks = [state.mark() for state in states]
    try:
        for state in states:
            model.apply(profile, state, event)
    except RuleFailed:
        for state, mark in zip(states, marks, strict=True):
            state.rollback(mark)
        return False
    return True


def kind(each: Record) -> EventKind:
    event = orjson.loads(each.event)
    schema = event["payload"].get("schema", "") if event["type"] == "event" else ""
    return EventKind(event["type"], schema)


def require_exact(
    result: Revalidation, records: Sequence[Record], before: ServerOutcome, now: ServerOutcome, out: Path
) -> None:
    """Every count, and every row, as the plain computation has them."""
    living = [each for each in records if not is_tombstone(each.event)]
    assert result.settled
    assert (result.events, result.erased) == (len(living), len(records) - len(living))
    assert result.partitions == len(before.states) == len(now.states)
    newly = now.rejected - before.rejected
    expected = {
        "events": Counter(kind(each) for each in living),
        "rejected_before": Counter(kind(each) for each in living if each.committed_id in before.rejected),
        "rejected_now": Counter(kind(each) for each in living if each.committed_id in now.rejected),
        "newly_rejected": Counter(kind(each) for each in living if each.committed_id in newly),
        "no_longer_rejected": Counter(
            kind(each) for each in living if each.committed_id in before.rejected - now.rejected
        ),
        "skipped_before": Counter(kind(records[id - 1]) for _, id in before.skipped),
        "skipped_now": Counter(kind(records[id - 1]) for _, id in now.skipped),
        "newly_skipped": Counter(kind(records[id - 1]) for _, id in now.skipped - before.skipped),
    }
    for field, counts in expected.items():
        assert {each.kind: getattr(each.counts, field) for each in result.kinds} == {
            each.kind: counts[each.kind] for each in result.kinds
        }, field
        assert getattr(result.total, field) == counts.total(), field
    assert sum(each.events for each in result.reasons) == len(newly)
    for each in result.reasons:
        assert {example.committed_id for example in each.examples} <= newly
        assert len(each.examples) == min(3, each.events)
    differing = {name for name, state in now.states.items() if before.states[name] != state}
    assert result.differing == len(differing)
    assert {each.partition for each in result.differences} == differing
    rows = pq.read_table(out / "events").to_pylist() if (out / "events").exists() else []
    told = {(row["partition"], row["committed_id"]): row for row in rows}
    assert len(told) == len(rows)
    assert {id for (_, id), row in told.items() if row["rejected_now"]} == now.rejected
    assert {id for (_, id), row in told.items() if row["rejected_before"]} == before.rejected
    assert {id for (_, id), row in told.items() if row["refused_here"]} == now.rejected, (
        "somebody refuses each of them"
    )
    assert {key for key, row in told.items() if row["skipped_now"]} == now.skipped
    for lived in living:
        if lived.committed_id in now.rejected:
            assert all((name, lived.committed_id) in told for name in lived.partitions), "in every partition"
    names = pq.read_table(out / "partitions").column("partition").to_pylist() if differing else []
    assert set(names) == differing
