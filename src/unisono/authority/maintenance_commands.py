"""Commands by which the pipeline maintains an embedded log: the authority stays its only writer.

Each command does one short step at a time between two groups, so commits go on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

from unisono.authority.replica import Replica
from unisono.ipc.messages import AdminCommand
from unisono.store.batching import in_batches
from unisono.store.maintenance import (
    PRUNE_EVENTS_MAX,
    EraseRequest,
    MaintainedLog,
    MaintenanceRefused,
    Publication,
    require_publishable,
    require_unerased,
)
from unisono.store.port import Snapshot
from unisono.vocabulary import JsonObject

STEP_S: Final = 0.005
"""Target duration of one step of pruning or publishing, by which the next group is delayed."""

PRUNE_EVENTS_MIN: Final = 64
"""Below this the step takes as long as the disk needs to make it durable, whatever the number of events."""

STORED_SNAPSHOTS_MIN: Final = 64
STORED_SNAPSHOTS_MAX: Final = 512
STORED_BYTES_MAX: Final = 1 << 20
"""Bounds of one transaction that stores snapshots; a larger snapshot is stored alone."""


class MaintenanceCommands:
    """Executes them. Invariant: `_steps` are what is left of the command `_ticket`."""

    def __init__(self, log: MaintainedLog | None) -> None:
        self._log = log
        self._ticket = 0
        self._steps: Iterator[None] = iter(())
        self._prune_events = PRUNE_EVENTS_MIN
        self._stored_snapshots = STORED_SNAPSHOTS_MIN

    def execute(self, replica: Replica, command: AdminCommand) -> JsonObject | None:
        """The result; None: not finished, call again after the next group."""
        if self._log is None:
            raise MaintenanceRefused("the log of this server is shared: maintain it in the database itself")
        try:
            return self._execute(replica, self._log, command)
        except msgspec.MsgspecError as error:
            raise MaintenanceRefused(f"malformed body of {command.command}: {error}") from error

    def _execute(self, replica: Replica, log: MaintainedLog, command: AdminCommand) -> JsonObject | None:
        match command.command:
            case "archive":
                log.set_archive(msgspec.msgpack.decode(command.body, type=str))
                return {}
            case "prune":
                events = self._prune(log, msgspec.msgpack.decode(command.body, type=int))
                return {"events": events, "pruned_to": log.extent().pruned_to}
            case "snapshots":
                return self._store_snapshots(replica, log, command)
            case "erase":
                request = msgspec.msgpack.decode(command.body, type=EraseRequest)
                erased = log.erase(request.tombstones, request.partitions)
                replica.states.forget(erased.partitions)
                return {"events": erased.events, "erasures": erased.erasures}
            case "reclaim":
                reclaimed: JsonObject = msgspec.to_builtins(log.reclaim())
                return reclaimed
            case name:
                raise MaintenanceRefused(f"unknown command {name!r}")

    def _prune(self, log: MaintainedLog, upto: int) -> int:
        """Prune as many events as take about STEP_S, which depends on the disk and on their size."""
        started = time.perf_counter()
        events = log.prune_batch(upto, limit=self._prune_events)
        if events == self._prune_events:
            wanted = _in_step(events, time.perf_counter() - started)
            self._prune_events = max(PRUNE_EVENTS_MIN, min(wanted, PRUNE_EVENTS_MAX))
        return events

    def _store_snapshots(
        self, replica: Replica, log: MaintainedLog, command: AdminCommand
    ) -> JsonObject | None:
        """One transaction per call."""
        if self._ticket != command.ticket:
            publication = msgspec.msgpack.decode(command.body, type=Publication)
            states = replica.states
            require_publishable(
                publication.snapshots, log.extent().head, states.snapshot_version, states.model_digest
            )
            require_unerased(publication.erasures, log.erasures())
            self._ticket, self._steps = command.ticket, self._put_in_batches(log, publication.snapshots)
        if next(self._steps, self) is None:
            return None
        return {}

    def _put_in_batches(self, log: MaintainedLog, snapshots: list[Snapshot]) -> Iterator[None]:
        """One transaction a step, with as many snapshots as take about STEP_S."""
        done = 0
        while done < len(snapshots):
            limit = self._stored_snapshots
            batch = next(
                in_batches(
                    islice(snapshots, done, None),
                    lambda snapshot: len(snapshot.state),
                    count_max=limit,
                    bytes_max=STORED_BYTES_MAX,
                )
            )
            started = time.perf_counter()
            log.put_snapshots(batch, per_transaction=limit)
            wanted = _in_step(len(batch), time.perf_counter() - started)
            self._stored_snapshots = max(STORED_SNAPSHOTS_MIN, min(wanted, STORED_SNAPSHOTS_MAX))
            done += len(batch)
            yield


def _in_step(done: int, took: float) -> int:
    """How many fit into STEP_S, after so many took so long; at most twice as many."""
    return round(done * STEP_S / max(took, STEP_S / 2))
