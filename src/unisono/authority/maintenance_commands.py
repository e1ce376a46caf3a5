"""The pipeline's orders to a running authority: it stays the only writer of its log, and does one short step at a
time between two groups, so commits go on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from unisono.ipc.messages import AdminCommand
from unisono.store.maintenance import (
    PRUNE_EVENTS_MAX,
    EraseRequest,
    MaintainedLog,
    MaintenanceRefused,
    Publication,
    require_publishable,
    require_unerased,
    snapshot_batches,
)
from unisono.store.port import Snapshot
from unisono.vocabulary import JsonObject

if TYPE_CHECKING:
    from unisono.authority.loop import Authority


PRUNE_S: Final = 0.005
"""How long a group may have to wait for events that leave."""

PRUNE_EVENTS_MIN: Final = 64
"""Of fewer, the time is that of the disk to make them durable, whatever their number."""


class KeepingOrders:
    """Carries them out. Invariant: `_steps` belongs to the order `_ticket`, which is not done yet."""

    def __init__(self, log: MaintainedLog | None) -> None:
        self._log = log
        self._ticket = 0
        self._steps: Iterator[None] = iter(())
        self._prune_events = PRUNE_EVENTS_MIN

    def obey(self, authority: Authority, order: AdminCommand) -> JsonObject | None:
        """What came of it; None: not done yet, ask again after the next group."""
        if self._log is None:
            raise MaintenanceRefused("this server's log is shared: it is kept over the database itself")
        try:
            return self._obey(authority, self._log, order)
        except msgspec.MsgspecError as error:
            raise MaintenanceRefused(f"what the order carries cannot be read: {error}") from error

    def _obey(self, authority: Authority, log: MaintainedLog, order: AdminCommand) -> JsonObject | None:
        match order.command:
            case "archive":
                log.set_archive(msgspec.msgpack.decode(order.body, type=str))
                return {}
            case "prune":
                events = self._prune(log, msgspec.msgpack.decode(order.body, type=int))
                return {"events": events, "pruned_to": log.extent().pruned_to}
            case "snapshots":
                return self._publish(authority, log, order)
            case "erase":
                asked = msgspec.msgpack.decode(order.body, type=EraseRequest)
                erased = log.erase(asked.tombstones, asked.partitions)
                authority.states.forget(erased.partitions)
                return {"events": erased.events, "erasures": erased.erasures}
            case "reclaim":
                told: JsonObject = msgspec.to_builtins(log.reclaim())
                return told
            case _:
                raise MaintenanceRefused(f"there is no order {order.command!r}")

    def _prune(self, log: MaintainedLog, upto: int) -> int:
        """As many as the last times took about PRUNE_S, which depends on the disk and on how ids are spread."""
        started = time.perf_counter()
        events = log.prune_batch(upto, limit=self._prune_events)
        if events == self._prune_events:
            wanted = round(events * PRUNE_S / max(time.perf_counter() - started, PRUNE_S / 2))
            self._prune_events = max(PRUNE_EVENTS_MIN, min(wanted, PRUNE_EVENTS_MAX))
        return events

    def _publish(self, authority: Authority, log: MaintainedLog, order: AdminCommand) -> JsonObject | None:
        """A transaction each time it is asked."""
        if self._ticket != order.ticket:
            asked = msgspec.msgpack.decode(order.body, type=Publication)
            states = authority.states
            require_publishable(
                asked.snapshots, log.extent().head, states.snapshot_version, states.model_digest
            )
            require_unerased(asked.erasures, log.erasures())
            self._ticket, self._steps = order.ticket, _stored(log, asked.snapshots)
        if next(self._steps, self) is None:
            return None
        return {}


def _stored(log: MaintainedLog, snapshots: list[Snapshot]) -> Iterator[None]:
    for batch in snapshot_batches(snapshots):
        log.put_snapshots(batch)
        yield
