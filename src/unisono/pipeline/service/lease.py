"""Never two services at work on one lake: a lease, kept in the lake itself.

The lease is a Delta table `lease` without rows. Each commit of it names a holder and until when it holds, and raises
an application transaction by one; of two that try at once, the object store or the file system lets one through and
Delta refuses the other. So it holds wherever the lake is, and nothing has to be running for it.

Whoever holds it renews it well before it ends. One who was killed keeps it until it runs out, unless it was on this
machine, where a dead process is seen to be dead. Clocks of two machines need not agree: who waits for a lease
measures by its own how long it has not been renewed. A holder that slept past its end finds the lease with another at
its next renewal; what it did meanwhile harmed nobody, because every change of a lake or a log stands on its own.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from unisono.lake.errors import LakeUnusable, one_line
from unisono.lake.storage import Storage
from unisono.pipeline.clock import now_ms
from unisono.pipeline.errors import PipelineError, brief
from unisono.pipeline.spark.cluster import boot_id

TABLE: Final = "lease"
TRANSACTION: Final = "unisono.lease"

LEASE_S: Final = 60.0
"""How long a lake stays taken after its holder died on another machine."""

RENEWALS: Final = 3
"""Times a lease is renewed before it would end."""

POLLS: Final = 60
"""Times whoever waits looks during the length of a lease."""

SKEW_S: Final = 5.0
"""By which clocks of two machines may differ for who does not wait to see a lease renewed."""

_SCHEMA: Final = pa.schema([pa.field("holder", pa.string())])
_CONFIGURATION: Final = {
    "delta.checkpointInterval": "32",
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.enableExpiredLogCleanup": "true",
}


class LeaseTaken(PipelineError):
    """Another service holds the lake."""


class Holder(msgspec.Struct, frozen=True):
    """Who holds a lake, and until when by its own clock; 0 when it was given back.

    `machine` and `began` tell its process from all others: a number is given again, in a container at once.
    """

    name: str
    host: str
    pid: int
    until_ms: int
    lease_s: float = LEASE_S
    machine: str = ""
    began: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether it surely works no longer: it gave the lease back, or ran on this machine and does not now."""
        if self.until_ms == 0:
            return True
        return bool(self.machine) and self.machine == _machine() and self.began != _began(self.pid)

    @property
    def has_run_out(self) -> bool:
        """Whether its time is over, if its clock and ours agree."""
        return self.until_ms + SKEW_S * 1_000 <= now_ms()

    def text(self) -> str:
        return f"process {self.pid} on {self.host}"


Wait = Callable[[Holder, float], bool]
"""Told who has it, sleeps for so many seconds; True to give up."""


class _Watch:
    """Whether a lease can be had. Who waits sees it renewed, and by its own clock when that stays out for its whole
    length; who does not can only compare two clocks."""

    def __init__(self, *, waits: bool) -> None:
        self._waits = waits
        self._seen: Holder | None = None
        self._since = 0.0

    def is_free(self, holder: Holder | None) -> bool:
        if holder is None or holder.has_ended:
            return True
        if not self._waits:
            return holder.has_run_out
        now = time.monotonic()
        if holder != self._seen:
            self._seen, self._since = holder, now
        return now - self._since > holder.lease_s


class Lease:
    """The right to work on a lake, from `take` to `give_back`; renewed in a thread of its own meanwhile.

    `lost` is set when a renewal found it with another, or could not be made before it ended; `why` then says which.
    """

    def __init__(self, storage: Storage, lease_s: float = LEASE_S) -> None:
        self._storage = storage
        self._lease_s = lease_s
        self._name = uuid.uuid4().hex
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.lost = threading.Event()
        self.why = ""

    def take(self, wait: Wait | None = None) -> None:
        """Take it, or raise LeaseTaken; with `wait`, when its holder has ended or did not renew it for too long."""
        watch = _Watch(waits=wait is not None)
        while True:
            table = self._open()
            holder = _holder(table)
            if watch.is_free(holder):
                if self._commit(table, self._end_ms()):
                    break
            elif holder is not None and (wait is None or wait(holder, self._lease_s / POLLS)):
                raise LeaseTaken(f"{holder.text()} is at work on the lake at {self._storage.location}")
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def give_back(self) -> None:
        """End it, so that the next need not wait; harmless when it was never had, or is had no longer."""
        self._stop.set()
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        with suppress(LeaseTaken, LakeUnusable, DeltaError, OSError):  # out of reach, it runs out by itself
            self._restate(until_ms=0)

    def _renew(self) -> None:
        ends = time.monotonic() + self._lease_s
        while not self.lost.is_set() and not self._stop.wait(self._lease_s / RENEWALS):
            try:
                self._restate(self._end_ms())
                ends = time.monotonic() + self._lease_s
            except LeaseTaken as taken:
                self._lose(f"was lost: {taken}")
            except Exception as error:  # out of reach; perhaps it comes back in time
                if time.monotonic() > ends:
                    self._lose(f"could not be renewed: {brief(error)}")

    def _restate(self, until_ms: int) -> None:
        """Hold it until another time; LeaseTaken when it is not ours."""
        table = self._open()
        holder = _holder(table)
        if holder is None or holder.name != self._name:
            raise LeaseTaken("somebody else has it" if holder is None else f"{holder.text()} has it")
        if not self._commit(table, until_ms):
            raise LakeUnusable(f"somebody else writes to {self._storage.table(TABLE)}")

    def _lose(self, why: str) -> None:
        self.why = f"the lake's lease {why}"
        self.lost.set()

    def _end_ms(self) -> int:
        return now_ms() + int(self._lease_s * 1_000)

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
            raise LakeUnusable(f"{place} cannot be opened: {one_line(error)}") from error

    def _commit(self, table: DeltaTable, until_ms: int) -> bool:
        """Name ourselves the holder; False when somebody else committed first."""
        pid = os.getpid()
        holder = Holder(
            self._name, socket.gethostname(), pid, until_ms, self._lease_s, _machine(), _began(pid)
        )
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
        except (DeltaError, OSError) as error:
            raise LakeUnusable(f"{self._storage.table(TABLE)} cannot be written: {error}") from error
        return True


def _holder(table: DeltaTable) -> Holder | None:
    """Who the newest commit names; None of a table that was just made."""
    newest: dict[str, Any] = table.history(1)[0]
    told = newest.get("unisono")
    if isinstance(told, str):
        return msgspec.json.decode(told, type=Holder)
    return None if told is None else msgspec.convert(told, Holder)


def _machine() -> str:
    """Where the number of a process means something: this system since it was started, and in a container only that.

    Empty where the system does not say.
    """
    try:
        return f"{socket.gethostname()} {boot_id()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _began(pid: int) -> str:
    """When the process began, in ticks of the kernel; empty when none of that number is alive."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else fields[18]
