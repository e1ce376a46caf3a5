"""Real SQLite logs with something about them: a gate, a fault, a count of what is read, a long history."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Self

from tests.waiting import PATIENCE_S
from unisono.protocol.canonical import canonical, content_hash
from unisono.store.port import NO_SNAPSHOT_STARTS, Page, Record
from unisono.store.sqlite import files
from unisono.store.sqlite.log import SqliteLog
from unisono.vocabulary import JsonObject


class Gate:
    """Commits wait here while it is shut; `reached` says that one does."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.reached = threading.Event()

    def shut(self) -> None:
        self.reached.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def wait_reached(self) -> None:
        assert self.reached.wait(PATIENCE_S), "no commit came"

    def __call__(self) -> None:
        if not self._open.is_set():
            self.reached.set()
            assert self._open.wait(PATIENCE_S), "the gate was never opened"


class GatedLog(SqliteLog):
    """A log whose commits pass a gate."""

    gate: Gate

    @classmethod
    def open(
        cls, directory: Path, *, lock_wait_s: float = files.LOCK_WAIT_S, for_groups: bool = True
    ) -> Self:
        log = super().open(directory, lock_wait_s=lock_wait_s, for_groups=for_groups)
        log.gate = Gate()
        return log

    def commit(self, records: Sequence[Record]) -> None:
        self.gate()
        super().commit(records)


class FailingLog(SqliteLog):
    """A log that after some commits fails as any failing log does: for good."""

    commits_left = 2

    def commit(self, records: Sequence[Record]) -> None:
        self.commits_left -= 1
        if self.commits_left < 0:
            self._fail("committing a group", OSError("made to fail"))
        super().commit(records)


class CountingLog(SqliteLog):
    """A log that counts the records read from it page by page."""

    records_read = 0

    def page(
        self,
        partitions: Sequence[str],
        since: int,
        upto: int,
        *,
        limit: int,
        bytes_max: int,
        snapshot_starts: Mapping[str, int] = NO_SNAPSHOT_STARTS,
    ) -> Page:
        page = super().page(
            partitions, since, upto, limit=limit, bytes_max=bytes_max, snapshot_starts=snapshot_starts
        )
        self.records_read += len(page.records)
        return page


def tree_actions(count: int, seed: int = 0) -> Iterator[JsonObject]:
    """Valid actions on one tree: sixty in a hundred push a node, the others update and move nodes.

    A node's parent always has a smaller number, also after a move, so that no node is moved below itself.
    """
    chance, nodes = random.Random(seed), 0
    for _ in range(count):
        kind, number = chance.random(), chance.randrange(nodes) if nodes else 0
        above = f"n{chance.randrange(number)}" if number else "_root"
        if nodes < 2 or kind < 0.6:
            parent = f"n{number}" if nodes else "_root"
            value: JsonObject = {"id": f"n{nodes}", "title": f"node {nodes}", "done": False}
            options: JsonObject = {"parent": parent, "position": "last"}
            yield {"type": "treePush", "payload": {"target": "outline", "value": value, "options": options}}
            nodes += 1
        elif kind < 0.85:
            value, options = {"title": f"renamed {kind}", "done": True}, {"id": f"n{number}"}
            yield {"type": "treeUpdate", "payload": {"target": "outline", "value": value, "options": options}}
        else:
            options = {"id": f"n{number}", "parent": above, "position": "first"}
            yield {"type": "treeMove", "payload": {"target": "outline", "options": options}}


def grow(
    log: SqliteLog,
    partition: str,
    count: int,
    seed: int = 0,
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Append tree actions to one partition, a thousand in a group, past any authority."""
    names = canonical([partition])
    actions = tree_actions(count, seed)
    while group := [canonical(event) for event in islice(actions, 1000)]:
        head = log.begin([]).head
        log.commit(
            [
                Record(n, f"{partition}-{n}", "grown", (partition,), event, content_hash(event, names), n)
                for n, event in enumerate(group, head + 1)
            ]
        )
        log.maintain()
        progress(head + len(group))
