"""A history of any length, made in constant memory per partition: outlines with notes, by the sample model.

A hundred events per partition; one event in twenty is in two of them. The last hundredth goes to one partition in a
hundred, for what an increment costs. Ids are UUIDs of version 7, twenty events have one second.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from pathlib import Path

from tests.pipeline.outline import outline_model

from unisono.model.load import load_files
from unisono.protocol.canonical import canonical, content_hash
from unisono.store.cluster import ModelBundle
from unisono.store.port import Record
from unisono.store.sqlite.log import SqliteLog

EVENTS_PER_PARTITION = 100
GROUP = 1_000
START_MS = 1_700_000_000_000
EVENT_MS = 50
WORDS = ("lorem", "ipsum", "dolor", "sit", "amet", "consectetur", "adipiscing", "elit", "sed", "eiusmod")


def increment_of(events: int) -> int:
    return events // 100


def partitions_of(events: int) -> int:
    return max(100, events // EVENTS_PER_PARTITION)


class Rooms:
    """The events after number `first - 1` of a history with `partitions` partitions."""

    def __init__(self, partitions: int, first: int) -> None:
        self._partitions = partitions
        self._next = first
        self._chance = random.Random(first)
        self._nodes = array("I", [0]) * partitions
        self._notes = array("I", [0]) * partitions

    def records(self, count: int, rooms: int) -> Iterator[Record]:
        """The next ones, in the first `rooms` partitions."""
        for _ in range(count):
            number, chance = self._next, self._chance
            self._next += 1
            room = chance.randrange(rooms)
            if number % 20:
                names, body = [_name(room)], self._event(room)
            else:
                names = sorted({_name(room), _name(chance.randrange(rooms))})
                body = _added(f"both{number}", self._words(16))
            at = START_MS + number * EVENT_MS
            yield Record(
                number,
                _uuid7(at - chance.randrange(1, 2_000), chance),
                f"client-{chance.randrange(2_000)}",
                tuple(names),
                body.encode(),
                content_hash(body.encode(), canonical(list(names))),
                at,
            )

    def _event(self, room: int) -> str:
        kind, nodes, notes = self._chance.random(), self._nodes[room], self._notes[room]
        if kind < 0.4 or not nodes:
            self._nodes[room] += 1
            return (
                '{"payload":{"options":{"parent":"_root","position":"last"},"target":"outline",'
                f'"value":{{"done":false,"id":"n{nodes}","title":"{self._words(8)}"}}}},"type":"treePush"}}'
            )
        if kind < 0.65:
            return (
                f'{{"payload":{{"options":{{"id":"n{self._chance.randrange(nodes)}"}},"target":"outline",'
                f'"value":{{"done":true,"title":"{self._words(8)}"}}}},"type":"treeUpdate"}}'
            )
        if kind < 0.85 or not notes:
            self._notes[room] += 1
            return _added(f"m{notes}", self._words(16))
        return (
            f'{{"payload":{{"data":{{"id":"m{self._chance.randrange(notes)}","text":"{self._words(16)}"}},'
            '"schema":"note.edited"},"type":"event"}'
        )

    def _words(self, count: int) -> str:
        return " ".join(self._chance.choices(WORDS, k=count))


def _added(id: str, text: str) -> str:
    return f'{{"payload":{{"data":{{"id":"{id}","text":"{text}"}},"schema":"note.added"}},"type":"event"}}'


def _name(room: int) -> str:
    return f"room-{room:08d}"


def _uuid7(at_ms: int, chance: random.Random) -> str:
    rest = f"{chance.getrandbits(72):018x}"
    time = f"{at_ms:012x}"
    return f"{time[:8]}-{time[8:]}-7{rest[:3]}-a{rest[3:6]}-{rest[6:]}"


def build(directory: Path, events: int) -> None:
    """Make the log whole, through the real writer: `events`, and the increment."""
    whole, partitions = events + increment_of(events), partitions_of(events)
    log = SqliteLog.open(directory)
    try:
        head = log.head()
        if not head:
            model = outline_model()
            log.record_model(ModelBundle(model.version or 0, model.digest, dict(model.files)))
            load_files(dict(model.files))
        rooms = Rooms(partitions, head + 1)
        while head < whole:
            few = head >= events
            count = min(GROUP, (whole if few else events) - head)
            log.begin([])
            log.commit(list(rooms.records(count, max(1, partitions // 100) if few else partitions)))
            log.maintain()
            head += count
            if head % 500_000 == 0:
                print(f"    {head:,} of {whole:,} events made", flush=True)
    finally:
        log.close()
