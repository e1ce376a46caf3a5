"""Keeps two services from working on one lake: a lease in the lake itself.

The lease is a Delta table `lease` without rows. Each commit names a holder and an expiry time, and raises an
application transaction by one. Of two concurrent commits, storage accepts one and Delta refuses the other. So the
lease works wherever the lake is, and needs no running service.

A holder renews its lease well before it expires. The lease of a killed holder expires, or ends at once when a waiter
on the same machine sees that the process is dead. Clocks of two machines need not agree: a waiter measures with its
own clock how long the lease was not renewed. A holder that slept past its expiry finds another holder at its next
renewal; what it did until then is harmless, because every change of a lake or a log is safe by itself.
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
NOTE: Final = "unisono"

LEASE_S: Final = 60.0
"""Time until a lake is free after its holder died on another machine."""

RENEWALS: Final = 3
"""Renewals within the duration of a lease."""

POLLS: Final = 60
"""Polls of a waiter within the duration of a lease."""

FOREIGN_COMMITS_MAX: Final = 64
"""Commits of other programs, such as a property or the marks of a VACUUM, behind which the holder is looked for."""

SKEW_S: Final = 5.0
"""Clock difference between two machines that is tolerated when a lease is not waited for."""

_SCHEMA: Final = pa.schema([pa.field("holder", pa.string())])
_CONFIGURATION: Final = {
    "delta.checkpointInterval": "32",
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.enableExpiredLogCleanup": "true",
}


class LeaseTaken(PipelineError):
    """Another service has the lease of the lake."""


class Holder(msgspec.Struct, frozen=True):
    """The process that has the lease, and its expiry by its own clock; 0 when it was released.

    `machine` and `began` identify the process beside its pid, since pids are reused, in a container at once.
    `until_uptime_ms` is the expiry by the machine's monotonic clock, which nobody sets.
    """

    name: str
    host: str
    pid: int
    until_ms: int
    lease_s: float = LEASE_S
    machine: str = ""
    began: str = ""
    until_uptime_ms: int = 0

    @property
    def has_ended(self) -> bool:
        """Whether it certainly ended: it released the lease, or its process on this machine is gone."""
        if self.until_ms == 0:
            return True
        return bool(self.machine) and self.machine == _machine() and self.began != _began(self.pid)

    @property
    def is_expired(self) -> bool:
        """Whether the lease is expired, by its machine's monotonic clock, elsewhere assuming both clocks agree."""
        if self.until_uptime_ms and self.machine and self.machine == _machine():
            return self.until_uptime_ms <= _uptime_ms()
        return self.until_ms + SKEW_S * 1_000 <= now_ms()

    def text(self) -> str:
        return f"process {self.pid} on {self.host}"


Wait = Callable[[Holder, float], bool]
"""Called with the holder and seconds to sleep; returns True to give up."""


class _Watch:
    """Decides whether a lease is free. A waiter observes renewals, and by its own clock their absence for a whole
    lease duration; without waiting, only the two clocks can be compared."""

    def __init__(self, *, waits: bool) -> None:
        self._waits = waits
        self._last: Holder | None = None
        self._since = 0.0

    def is_free(self, holder: Holder | None) -> bool:
        if holder is None or holder.has_ended:
            return True
        if not self._waits:
            return holder.is_expired
        now = time.monotonic()
        if holder != self._last:
            self._last, self._since = holder, now
        return now - self._since > holder.lease_s


class Lease:
    """The exclusive right to work on a lake, from `acquire` to `release`; a thread renews it.

    `lost` is set when another process has the lease, or it could not be renewed in time; `why` says which.
    """

    def __init__(self, storage: Storage, lease_s: float = LEASE_S) -> None:
        self._storage = storage
        self._lease_s = lease_s
        self._name = uuid.uuid4().hex
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.lost = threading.Event()
        self.why = ""

    def acquire(self, wait: Wait | None = None) -> None:
        """Acquire the lease or raise LeaseTaken; with `wait`, wait until the holder ends or stops renewing."""
        watch = _Watch(waits=wait is not None)
        while True:
            table = self._open()
            holder = _holder(table)
            if watch.is_free(holder):
                if self._commit(table, self._end_ms()):
                    break
            elif holder is not None and (wait is None or wait(holder, self._lease_s / POLLS)):
                raise LeaseTaken(f"{holder.text()} works on the lake at {self._storage.location}")
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """End the lease, so that the next holder need not wait; does nothing without a lease."""
        self._stop.set()
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        with suppress(LeaseTaken, LakeUnusable, DeltaError, OSError):  # unavailable: the lease expires
            self._extend(until_ms=0)

    def _renew(self) -> None:
        ends = time.monotonic() + self._lease_s
        while not self.lost.is_set() and not self._stop.wait(self._lease_s / RENEWALS):
            try:
                self._extend(self._end_ms())
                ends = time.monotonic() + self._lease_s
            except LeaseTaken as taken:
                self._lose(f"was lost: {taken}")
            except Exception as error:  # unavailable; may be back in time
                if time.monotonic() > ends:
                    self._lose(f"could not be renewed: {brief(error)}")

    def _extend(self, until_ms: int) -> None:
        """Set another expiry; LeaseTaken when another process has the lease."""
        table = self._open()
        holder = _holder(table)
        if holder is None or holder.name != self._name:
            raise LeaseTaken("another process has it" if holder is None else f"{holder.text()} has it")
        if not self._commit(table, until_ms):
            raise LakeUnusable(f"another process writes to {self._storage.table(TABLE)}")

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
                with suppress(CommitFailedError):  # another process made it, or the store's answer was lost
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
            raise LakeUnusable(
                f"{place} cannot be opened: {one_line(error)}: if it is damaged, remove it, and the next service "
                "makes it again"
            ) from error

    def _commit(self, table: DeltaTable, until_ms: int) -> bool:
        """Commit this process as the holder; False when another commit came first."""
        pid = os.getpid()
        holder = Holder(
            self._name,
            socket.gethostname(),
            pid,
            until_ms,
            self._lease_s,
            _machine(),
            _began(pid),
            _uptime_ms() + int(self._lease_s * 1_000),
        )
        count = table.transaction_version(TRANSACTION) or 0
        try:
            table.create_write_transaction(
                [],
                "append",
                _SCHEMA,
                commit_properties=CommitProperties(
                    custom_metadata={NOTE: msgspec.to_builtins(holder)},
                    app_transactions=[Transaction(TRANSACTION, count + 1)],
                ),
            )
            self._storage.sync_commits(TABLE, table.version())
        except CommitFailedError as error:
            now = self._open()
            if now.version() == table.version():  # no other commit is the reason
                raise LakeUnusable(
                    f"{self._storage.table(TABLE)} cannot be written: {one_line(error)}"
                ) from error
            return _holder(now) == holder  # the store's answer may have been lost
        except (DeltaError, OSError) as error:
            raise LakeUnusable(f"{self._storage.table(TABLE)} cannot be written: {error}") from error
        return True


def _holder(table: DeltaTable) -> Holder | None:
    """The holder in the newest commit of a service; None for a new table."""
    commits: list[dict[str, Any]] = table.history(1)  # empty where a power loss left an empty commit
    if commits and NOTE not in commits[0]:
        commits = table.history(FOREIGN_COMMITS_MAX + 1)
    note = next((commit[NOTE] for commit in commits if NOTE in commit), None)
    if isinstance(note, str):
        return msgspec.json.decode(note, type=Holder)
    return None if note is None else msgspec.convert(note, Holder)


def _machine() -> str:
    """The scope in which a pid is unique: host, boot and pid namespace; empty where the system does not tell."""
    try:
        return f"{socket.gethostname()} {boot_id()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _uptime_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _began(pid: int) -> str:
    """When the process began, in kernel ticks; empty when there is no such process."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else fields[18]
