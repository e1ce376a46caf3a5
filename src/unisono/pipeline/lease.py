"""Never two services at work on one lake: a lease, kept in the lake itself.

The lease is a Delta table `lease` without rows. Each commit of it names a holder and until when it holds, and raises
an application transaction by one; of two that try at once, the object store or the file system lets one through and
Delta refuses the other. So it holds wherever the lake is, and nothing has to be running for it.

Whoever holds it renews it well before it ends. One who was killed keeps it until it runs out, unless it was on this
machine, where a dead process is seen to be dead. A holder that slept past its end finds the lease with another at its
next renewal; what it did meanwhile harmed nobody, because every change of a lake or a log stands on its own.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from unisono.pipeline.cluster import boot_id
from unisono.pipeline.errors import PipelineError
from unisono.store.delta.errors import LakeUnusable
from unisono.store.delta.storage import Storage

TABLE: Final = "lease"
TRANSACTION: Final = "unisono.lease"

LEASE_S: Final = 60.0
"""How long a lake stays taken after its holder died on another machine."""

RENEWALS: Final = 3
"""Times a lease is renewed before it would end."""

SKEW_S: Final = 5.0
"""By which clocks of two machines may differ."""

_SCHEMA: Final = pa.schema([pa.field("holder", pa.string())])
_CONFIGURATION: Final = {
    "delta.checkpointInterval": "32",
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.enableExpiredLogCleanup": "true",
}


class Taken(PipelineError):
    """Another service holds the lake."""


class Holder(msgspec.Struct, frozen=True):
    """Who holds a lake; `until_ms` is 0 when it was given back."""

    name: str
    host: str
    pid: int
    boot: str
    until_ms: int

    @property
    def is_dead(self) -> bool:
        """Whether it is known to have ended: it ran on this machine and does no longer."""
        if self.host != socket.gethostname() or self.boot != boot_id():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False

    def holds(self, now_ms: int) -> bool:
        return self.until_ms + SKEW_S * 1_000 > now_ms and self.until_ms > 0 and not self.is_dead

    def text(self) -> str:
        return f"process {self.pid} on {self.host}"


class Lease:
    """The right to work on a lake, from `take` to `give_back`; renewed in a thread of its own meanwhile.

    `lost` is set when a renewal found it with another, or could not be made before it ended.
    """

    def __init__(self, storage: Storage, lease_s: float = LEASE_S) -> None:
        self._storage = storage
        self._lease_s = lease_s
        self._name = uuid.uuid4().hex
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.lost = threading.Event()

    def take(self, wait: Callable[[float], bool] | None = None) -> None:
        """Take it, or raise Taken; with `wait` (sleeps for seconds, True to give up) try until it is free."""
        while True:
            holder = self._try()
            if holder is None:
                break
            if wait is None or wait(min(1.0, self._lease_s / RENEWALS)):
                raise Taken(f"{holder.text()} is at work on the lake at {self._storage.location}")
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def give_back(self) -> None:
        """End it, so that the next need not wait; harmless when it was never had, or is had no longer."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            if not self.lost.is_set():
                table = self._open()
                if self._is_mine(_holder(table)):
                    self._commit(table, until_ms=0)

    def _try(self) -> Holder | None:
        """None when it is ours now, else who has it."""
        table = self._open()
        holder = _holder(table)
        if holder is not None and not self._is_mine(holder) and holder.holds(_now_ms()):
            return holder
        if self._commit(table, _now_ms() + int(self._lease_s * 1_000)):
            return None
        return _holder(self._open())

    def _renew(self) -> None:
        ends = time.monotonic() + self._lease_s
        while not self._stop.wait(self._lease_s / RENEWALS):
            try:
                table = self._open()
                mine = self._is_mine(_holder(table))
                if mine and self._commit(table, _now_ms() + int(self._lease_s * 1_000)):
                    ends = time.monotonic() + self._lease_s
                    continue
            except (LakeUnusable, DeltaError, OSError):
                mine = True  # out of reach; perhaps it comes back in time
            if not mine or time.monotonic() > ends:
                self.lost.set()
                return

    def _is_mine(self, holder: Holder | None) -> bool:
        return holder is not None and holder.name == self._name

    def _open(self) -> DeltaTable:
        place, options = self._storage.table(TABLE), self._storage.options or None
        try:
            try:
                return DeltaTable(place, storage_options=options)
            except TableNotFoundError:
                DeltaTable.create(
                    place,
                    _SCHEMA,
                    mode="ignore",
                    name="unisono lease",
                    configuration=dict(_CONFIGURATION),
                    storage_options=options,
                )
                return DeltaTable(place, storage_options=options)
        except (DeltaError, OSError, ValueError) as error:
            raise LakeUnusable(f"{place} cannot be opened: {error}") from error

    def _commit(self, table: DeltaTable, until_ms: int) -> bool:
        """Name ourselves the holder; False when somebody else committed first."""
        holder = Holder(self._name, socket.gethostname(), os.getpid(), boot_id(), until_ms)
        count = table.transaction_version(TRANSACTION) or 0
        try:
            table.create_write_transaction(
                [],
                "append",
                _SCHEMA,
                commit_properties=CommitProperties(
                    custom_metadata={"unisono": msgspec.to_builtins(holder)},
                    app_transactions=[Transaction(TRANSACTION, count + 1)],
                ),
            )
        except CommitFailedError:
            return False
        return True


def _holder(table: DeltaTable) -> Holder | None:
    """Who the newest commit names; None of a table that was just made."""
    newest: dict[str, Any] = table.history(1)[0]
    told = newest.get("unisono")
    if isinstance(told, str):
        return msgspec.json.decode(told, type=Holder)
    return None if told is None else msgspec.convert(told, Holder)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
