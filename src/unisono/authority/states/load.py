"""Partitions on their way into memory: the newest snapshot of the model, then the events after it, in slices.

A short history is folded at once. A long one is folded in slices between groups, and a large snapshot is decoded in
a thread, so that requests for other partitions go on. Long loads take turns, a few at a time; short ones never wait
for them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final

import msgspec
import orjson

from unisono.authority.one_shot_thread import OneShotThread
from unisono.authority.states.replay import PartitionReplay
from unisono.authority.stuck_rules import RunningCall
from unisono.lake.cold.archive import Archive
from unisono.model.authorship import Authorship, authorship_of
from unisono.model.model import Model
from unisono.model.pack import unpack
from unisono.model.partition import PartitionState
from unisono.store.port import CommitLog, Record, Snapshot

logger = logging.getLogger("unisono.authority")

FOLD_BUDGET_EVENTS: Final = 200
"""Events folded in one pass of the loop for the first slices of all partitions that are needed for the first time."""

SNAPSHOT_BYTES_PER_EVENT: Final = 100
"""Bytes of a snapshot that take as long to decode as an event takes to fold."""

SNAPSHOT_BYTES_AT_ONCE: Final = 64 * 1024
"""Snapshots up to this size are decoded between two groups, in a few milliseconds; larger ones in a thread."""

LOADS_AT_ONCE: Final = 4
"""Long loads that take turns: more would need more memory, and finish no sooner."""


def record_authorship(record: Record) -> Authorship:
    """Who submitted an event of the log."""
    return authorship_of(record.client_id, record.author, record.status_updated_at)


decode_event = orjson.loads
"""Linear also on texts full of extreme numbers, which msgspec's decoder is not."""


class Load(msgspec.Struct):
    """One partition being loaded. `upto` is the last event in `state`; `folded` counts events after the snapshot.

    While `decoding` is set, the state comes from that thread. `replay` reads the events after the snapshot.
    """

    state: PartitionState
    upto: int
    folded: int = 0
    decoding: OneShotThread[PartitionState] | None = None
    replay: PartitionReplay | None = None

    @property
    def only_waits(self) -> bool:
        """Whether the next step depends on a thread that has not finished."""
        if self.decoding is not None:
            return not self.decoding.done
        return self.replay is not None and self.replay.only_waits


class Loads:
    """All partitions being loaded, in the order they were first needed."""

    def __init__(
        self,
        model: Model,
        store: CommitLog,
        archive: Archive,
        snapshot_version: int,
        running: RunningCall | None,
    ) -> None:
        self._model = model
        self._store = store
        self._archive = archive
        self._snapshot_version = snapshot_version
        self._running = running
        self._loads: dict[str, Load] = {}
        self._turn = 0
        self._budget = FOLD_BUDGET_EVENTS

    def __len__(self) -> int:
        return len(self._loads)

    def reset_budget(self) -> None:
        self._budget = FOLD_BUDGET_EVENTS

    def begin(self, partition: str) -> Load | None:
        """Begin to load a partition, within the budget; returns the load if the first slice completes it."""
        if partition in self._loads or self._budget <= 0:
            return None
        self._loads[partition] = self._start(partition)
        return self._fold_slice(partition)

    def advance(self) -> tuple[str, Load] | None:
        """Fold a slice of one of the oldest loads, in turn; returns the load if that completes it."""
        if not self._loads:
            return None
        oldest = list(islice(self._loads, LOADS_AT_ONCE))
        self._turn += 1
        partition = oldest[self._turn % len(oldest)]
        load = self._fold_slice(partition, allow_thread=True)
        return None if load is None else (partition, load)

    def pending_threads(self) -> list[bool]:
        """For each of the oldest loads, whether its next step depends on a thread that has not finished."""
        return [load.only_waits for load in islice(self._loads.values(), LOADS_AT_ONCE)]

    def cancel(self, partition: str) -> None:
        self._loads.pop(partition, None)

    def _fold_slice(self, partition: str, *, allow_thread: bool = False) -> Load | None:
        load = self._loads[partition]
        if load.decoding is not None:
            if not load.decoding.done:
                return None
            load = self._decoded(partition, load.upto, load.decoding.result)
            self._loads[partition] = load
        if load.replay is None:
            load.replay = PartitionReplay(self._store, self._archive, partition, load.upto)
        page = load.replay.next_slice(allow_thread=allow_thread)
        if page is None:
            self._budget -= 1
            return None
        for record in page.records:
            if self._running is not None:
                self._running.replay(record.id)
            self._model.apply_committed(load.state, decode_event(record.event), record_authorship(record))
            load.upto = record.committed_id
        load.folded += len(page.records)
        load.state.settle()
        self._budget -= len(page.records) + 1
        if page.has_more:
            return None
        del self._loads[partition]
        return load

    def _start(self, partition: str) -> Load:
        snapshot = self._store.snapshot(partition, self._snapshot_version, self._model.digest)
        if snapshot is None:
            return Load(PartitionState(), 0)
        self._budget -= len(snapshot.state) // SNAPSHOT_BYTES_PER_EVENT
        decode = partial(_decode_state, snapshot)
        if len(snapshot.state) <= SNAPSHOT_BYTES_AT_ONCE:
            return self._decoded(snapshot.partition, snapshot.committed_id, decode)
        return Load(PartitionState(), snapshot.committed_id, decoding=OneShotThread(decode))

    def _decoded(self, partition: str, upto: int, decode: Callable[[], PartitionState]) -> Load:
        """A load that starts from a snapshot; from the first event if the snapshot cannot be decoded."""
        try:
            return Load(decode(), upto)
        except ValueError as error:
            logger.error(
                "snapshot of %r at %d cannot be decoded, replaying all events: %s",
                partition,
                upto,
                error,
                extra={"partition": partition, "committed_id": upto},
            )
            return Load(PartitionState(), 0)


def _decode_state(snapshot: Snapshot) -> PartitionState:
    return PartitionState.load(unpack(snapshot.state))
