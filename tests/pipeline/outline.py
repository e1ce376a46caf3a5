"""Histories of outlines with notes, in both profiles, for folding: by the sample model, in any number, quickly.

Events are valid when they are made, but for a few that no state takes (as if committed under another model, or
erased since): replay must pass them over, everywhere alike.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from unisono.model.load import load_model
from unisono.model.model import Model
from unisono.pipeline.job_model import ShippedModel
from unisono.protocol.canonical import canonical, content_hash
from unisono.store.port import CommitLog, Record
from unisono.store.sqlite.log import SqliteLog

OUTLINE = Path(__file__).parents[2] / "src" / "unisono" / "samples" / "outline"
GROUP = 1_000
START_MS = 1_700_000_000_000
TWO_PARTITIONS = 0.05
PASSED_OVER = 0.01
WORDS = ("lorem", "ipsum", "dolor", "sit", "amet", "consectetur", "adipiscing", "ünï", "“tempor”", "日本")

HOT = "room-hot"
"""The partition that holds half of all events of a skewed history."""

Json = dict[str, Any]


def outline_model() -> Model:
    return load_model(OUTLINE)


def shipped_outline() -> ShippedModel:
    return ShippedModel.of(outline_model())


class _Room:
    """What must be known of a partition to write events that fit it."""

    def __init__(self) -> None:
        self.parents: dict[str, str] = {}
        self.children: dict[str, int] = {}
        self.nodes: list[str] = []
        self.notes: list[str] = []


class Outlines:
    """An endless history over `partitions` rooms; `skewed` gives half of it to one of them."""

    def __init__(self, seed: int | str, partitions: int, *, skewed: bool = False, first: int = 1) -> None:
        self._chance = random.Random(seed)
        self._partitions = partitions
        self._skewed = skewed
        self._rooms: dict[str, _Room] = {}
        self._next = first

    def record(self) -> Record:
        number, chance = self._next, self._chance
        self._next += 1
        names = {self._name()}
        if chance.random() < TWO_PARTITIONS:
            names.add(self._name())
        event = self._event(number, sorted(names))
        partitions = tuple(sorted(names, key=str.encode))
        body = canonical(event)
        return Record(
            number,
            f"{chance.getrandbits(128):032x}",
            f"client-{chance.randrange(50)}",
            partitions,
            body,
            content_hash(body, canonical(list(partitions))),
            START_MS + number // 3,
        )

    def records(self, count: int) -> list[Record]:
        return [self.record() for _ in range(count)]

    def _name(self) -> str:
        if self._skewed and self._chance.random() < 0.5:
            return HOT
        return f"room-{self._chance.randrange(self._partitions):05d}"

    def _event(self, number: int, names: list[str]) -> Json:
        chance = self._chance
        if chance.random() < PASSED_OVER:
            return self._misfit(number)
        rooms = [self._rooms.setdefault(name, _Room()) for name in names]
        if len(rooms) > 1:
            return self._added(number, rooms) if chance.random() < 0.5 else self._pushed(number, rooms)
        room, kind = rooms[0], chance.random()
        if kind < 0.40 or not room.nodes:
            return self._pushed(number, rooms)
        if kind < 0.62:
            return self._on_tree(room)
        if kind < 0.64:
            theme = chance.choice(["dark", "light", 3, 1.5, None, True])
            return _action("set", "settings.theme", value=theme)
        return self._note(number, room)

    def _pushed(self, number: int, rooms: list[_Room]) -> Json:
        id, chance = f"n{number}", self._chance
        parent, position = "_root", chance.choice(["first", "last"])
        if len(rooms) == 1 and rooms[0].nodes and chance.random() < 0.6:
            parent = chance.choice(rooms[0].nodes)
        for room in rooms:
            room.nodes.append(id)
            room.parents[id] = parent
            room.children[parent] = room.children.get(parent, 0) + 1
        value = {"id": id, "title": self._text(6), "done": False}
        return _action("treePush", "outline", value=value, options={"parent": parent, "position": position})

    def _on_tree(self, room: _Room) -> Json:
        chance = self._chance
        id, kind = chance.choice(room.nodes), chance.random()
        if kind < 0.5:
            value = {"title": self._text(4), "done": chance.random() < 0.5}
            return _action("treeUpdate", "outline", value=value, options={"id": id})
        if kind < 0.8 or room.children.get(id):
            return self._moved(room, id)
        place = room.nodes.index(id)
        room.nodes[place] = room.nodes[-1]
        room.nodes.pop()
        room.children[room.parents.pop(id)] -= 1
        return _action("treeDelete", "outline", options={"id": id})

    def _moved(self, room: _Room, id: str) -> Json:
        parent = self._chance.choice(room.nodes)
        above: str | None = parent
        while above is not None and above != id:
            above = room.parents.get(above)
        if above == id:
            parent = "_root"
        room.children[room.parents[id]] -= 1
        room.parents[id] = parent
        room.children[parent] = room.children.get(parent, 0) + 1
        position = self._chance.choice(["first", "last"])
        return _action("treeMove", "outline", options={"id": id, "parent": parent, "position": position})

    def _note(self, number: int, room: _Room) -> Json:
        chance, kind = self._chance, self._chance.random()
        if kind < 0.05:
            return _canonical("outline.renamed", {"title": self._text(2)})
        if kind < 0.6 or not room.notes:
            return self._added(number, [room])
        place = chance.randrange(len(room.notes))
        if kind < 0.85:
            return _canonical("note.edited", {"id": room.notes[place], "text": self._text(12)})
        id, room.notes[place] = room.notes[place], room.notes[-1]
        room.notes.pop()
        return _canonical("note.removed", {"id": id})

    def _added(self, number: int, rooms: list[_Room]) -> Json:
        for room in rooms:
            room.notes.append(f"n{number}")
        return _canonical(
            "note.added", {"id": f"n{number}", "text": self._text(16), "tags": self._text(2).split()}
        )

    def _misfit(self, number: int) -> Json:
        return self._chance.choice(
            [
                _canonical("note.edited", {"id": "nowhere", "text": "?"}),
                _action("treeDelete", "outline", options={"id": "nowhere"}),
                {"type": "erased", "payload": {"erased_at": START_MS + number}},
                _action("set", "", value=1),
            ]
        )

    def _text(self, words: int) -> str:
        return " ".join(self._chance.choices(WORDS, k=words))


def _action(kind: str, target: str, **rest: Any) -> Json:
    return {"type": kind, "payload": {"target": target, **rest}}


def _canonical(schema: str, data: Json) -> Json:
    return {"type": "event", "payload": {"schema": schema, "data": data}}


def append_outlines(log: CommitLog, outlines: Outlines, count: int) -> list[Record]:
    """Commit `count` more events in groups; what they are."""
    made: list[Record] = []
    while len(made) < count:
        log.begin([])
        group = outlines.records(min(GROUP, count - len(made)))
        log.commit(group)
        log.maintain()
        made += group
    return made


def make_outlines(
    directory: Path, count: int, partitions: int = 40, *, skewed: bool = False, seed: int = 1
) -> list[Record]:
    """A log of its own with `count` events; what is in it."""
    log = SqliteLog.open(directory)
    try:
        return append_outlines(log, Outlines(seed, partitions, skewed=skewed), count)
    finally:
        log.close()
