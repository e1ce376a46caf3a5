"""Histories as older systems left them, with faults planted on purpose and every one of them counted."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

START_MS = 1_600_000_000_000

Line = dict[str, Any]


class Planted(msgspec.Struct):
    """What must come of the rows. `ids` are those to be loaded, in order."""

    rows: int = 0
    accepted: int = 0
    duplicate: int = 0
    migrated: int = 0
    reasons: Counter[str] = Counter()
    ids: list[str] = []


class Legacy:
    """Rows of a past life, `faults` of a thousand of them of no use.

    Events push items into rooms' trees and change them later. One in ten is in two rooms, but rooms only share events
    within their own block of ten; `connected`: with any other.
    """

    def __init__(
        self,
        count: int,
        *,
        seed: int = 1,
        rooms: int = 200,
        faults: int = 100,
        keep_ids: bool = True,
        connected: bool = False,
    ) -> None:
        self.count = count
        self.planted = Planted(reasons=Counter(), ids=[])
        self._chance = random.Random(seed)
        self._rooms = rooms
        self._faults = faults
        self._keep_ids = keep_ids
        self._connected = connected
        self._recent: list[Line] = []
        self._items: list[tuple[str, list[str]]] = []
        self._number = 0

    def lines(self) -> Iterator[bytes]:
        for place in range(self.count):
            self.planted.rows += 1
            line = self._faulty(place) if self._chance.randrange(1000) < self._faults else self._good()
            yield line if isinstance(line, bytes) else json.dumps(line, ensure_ascii=place % 2 == 0).encode()

    def _good(self) -> Line:
        line = self._fresh()
        self._accept(line)
        self._recent.append(line)
        if len(self._recent) > 500:
            self._recent.pop(self._chance.randrange(400))
        return line

    def _accept(self, line: Line) -> None:
        self.planted.accepted += 1
        self.planted.ids.append(line["id"])
        self.planted.migrated += "partition" in line

    def _fresh(self) -> Line:
        chance = self._chance
        self._number += 1
        rooms = self._some_rooms()
        if self._items and chance.random() < 0.3:
            item, rooms = chance.choice(self._items)
            event: Any = {
                "type": "treeUpdate",
                "payload": {"target": "doc", "value": {"n": self._number}, "options": {"id": item}},
            }
        elif self._number % 5 == 0:
            data = {"text": "“já” — 日本 🎻", "n": self._number, "ratio": self._number / 7}
            event = {"type": "event", "payload": {"schema": "note.added", "data": data}}
        else:
            item = f"n{self._number}"
            event = {
                "type": "treePush",
                "payload": {"target": "doc", "value": {"id": item, "text": "lorem ipsum"}, "options": {}},
            }
            self._items.append((item, rooms))
            if len(self._items) > 2_000:
                self._items.pop(chance.randrange(1_000))
        return self._line(rooms, event)

    def _some_rooms(self) -> list[str]:
        room = self._chance.randrange(self._rooms)
        rooms = [f"room-{room:05d}"]
        if self._chance.random() < 0.1:
            first, count = (0, self._rooms) if self._connected else (room // 10 * 10, 10)
            rooms.append(f"room-{first + self._chance.randrange(count):05d}")
        return rooms

    def _line(self, rooms: list[str], event: Any) -> Line:
        line: Line = {"id": f"{self._chance.getrandbits(128):032x}", "event": event}
        line["client_id"] = f"client-{self._chance.randrange(50)}"
        line["status_updated_at"] = START_MS + self._number * 10
        if self._keep_ids:
            line["committed_id"] = self._number * 3
        shape = self._number % 4
        if len(set(rooms)) > 1 or shape == 0:
            line["partitions"] = rooms[::-1] + rooms[:1]
        elif shape == 1:
            line["partition"] = rooms[0]
            line["partitions"] = [rooms[0], rooms[0]]
        else:
            line["partition"] = rooms[0]
        return line

    def _faulty(self, place: int) -> Line | bytes:
        kinds = [
            self._duplicate, self._conflict, self._disagrees, self._no_partitions, self._unreadable, self._bad_id,
            self._bad_event, self._shape, self._refused, self._too_deep,
        ]  # fmt: skip
        if not self._recent or not self._items:
            return self._good()
        return kinds[place % len(kinds)]()

    def _reject(self, reason: str, line: Line | bytes) -> Line | bytes:
        self.planted.reasons[reason] += 1
        return line

    def _duplicate(self) -> Line:
        """The same event: keys in another order, a number spelled differently, another sender."""
        earlier = self._chance.choice(self._recent)
        self.planted.duplicate += 1
        self.planted.migrated += "partition" in earlier
        line = dict(reversed(earlier.items()))
        line["client_id"] = "somebody else"
        if self._keep_ids:
            self._number += 1
            line["committed_id"] = self._number * 3
        return line

    def _conflict(self) -> Line | bytes:
        earlier = self._chance.choice(self._recent)
        line = self._line(["room-00000"], {"type": "set", "payload": {"target": "x", "value": 1}})
        line["id"] = earlier["id"]
        self._number += 1
        if self._keep_ids:
            line["committed_id"] = self._number * 3
        self.planted.migrated += "partition" in line
        return self._reject("conflict", line)

    def _disagrees(self) -> Line | bytes:
        line = self._fresh_set()
        line["partition"], line["partitions"] = "room-00000", ["room-00001"]
        return self._reject("partition_disagrees", line)

    def _no_partitions(self) -> Line | bytes:
        line = self._fresh_set()
        line.pop("partition", None)
        line["partitions"] = self._chance.choice(
            [[], ["x" * 129], [""], "room", [f"r{n}" for n in range(65)]]
        )
        return self._reject("bad_partitions", line)

    def _unreadable(self) -> bytes:
        line = self._chance.choice([b'{"id": "broken', b"\xff\xfe", b"[1, 2]", b"null", b'{"id":"\xff"}'])
        self.planted.reasons["unreadable"] += 1
        return line

    def _bad_id(self) -> Line | bytes:
        line = self._fresh_set()
        line["id"] = self._chance.choice([None, "", 17, "é" * 65])
        return self._reject("bad_id", line)

    def _bad_event(self) -> Line | bytes:
        line = self._fresh_set()
        text = json.dumps(line | {"event": "EVENT"})
        broken = self._chance.choice(
            ["[]", "null", '{"a":1,"a":2}', '{"n":1e999}', '{"n":0.12345678901234567890}', '"x"']
        )
        self.planted.reasons["bad_event"] += 1
        return text.replace('"EVENT"', broken).encode()

    def _shape(self) -> Line | bytes:
        line = self._fresh_set()
        line["event"] = self._chance.choice(
            [
                {"type": "treePush", "payload": {"target": "doc"}},
                {"type": "nonsense", "payload": {}},
                {"type": "event", "payload": {"data": 1}},
                {"type": "event", "payload": {"schema": "a", "data": 1, "meta": 2}},
            ]
        )
        return self._reject("shape", line)

    def _refused(self) -> Line | bytes:
        """Valid by itself, but not where it stands."""
        item, rooms = self._chance.choice(self._items)
        push = {"type": "treePush", "payload": {"target": "doc", "value": {"id": item}}}
        delete = {"type": "treeDelete", "payload": {"target": "doc", "options": {"id": "never there"}}}
        self._number += 1
        line = self._line(rooms, self._chance.choice([push, delete]))
        self.planted.migrated += "partition" in line
        return self._reject("refused", line)

    def _too_deep(self) -> Line | bytes:
        line = self._fresh_set()
        value: Any = 1
        for _ in range(70):
            value = [value]
        line["event"] = {
            "type": "set",
            "payload": {"target": "x", "value": value, "options": {"replace": True}},
        }
        return self._reject("too_deep", line)

    def _fresh_set(self) -> Line:
        self._number += 1
        return self._line(["room-00000"], {"type": "set", "payload": {"target": "x", "value": 1}})


def write_lines(legacy: Legacy, path: Path) -> Planted:
    """All lines into one file; what was planted."""
    with path.open("wb") as file:
        for line in legacy.lines():
            file.write(line + b"\n")
    return legacy.planted
