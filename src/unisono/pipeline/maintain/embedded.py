"""How the pipeline changes a store, beside whoever writes it: snapshots in, old events out, erased text gone.

An embedded log has one writer. While a server runs on it, the server is asked over its admin port and does each step
between two groups; while none runs, the directory's lock is taken for the step. That is decided anew for every step,
so a server may start or end in the middle of a job. A shared log is reached by its owner's connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from unisono.pipeline.errors import NoSuchStore, PipelineError
from unisono.pipeline.maintain.admin_http import AdminPort, AdminRefused, Unreachable
from unisono.pipeline.open_log import normal_uri, sqlite_directory
from unisono.store.cluster import ModelBundle
from unisono.store.maintenance import (
    ERASE_EVENTS_MAX,
    NO_MODEL_VERSION,
    EraseRequest,
    MaintenanceRefused,
    Publication,
    ReclaimProgress,
    Tombstone,
    require_publishable,
    require_unerased,
    snapshot_batches,
)
from unisono.store.port import LogExtent, LogInUse, Snapshot, StorageError, StoreUnusable
from unisono.store.sqlite.log import SqliteLog, SqliteReader

STEP_S: Final = 0.5
"""How long the lock of a log without a server is kept at a time: a server that starts waits ten times as long."""

SERVER_WAIT_S: Final = 20.0
"""For a server that starts, ends or is busy to be of use."""

REST: Final = 2.0
"""Beside a server: between two steps of pruning, so many times as long as the last one took belongs to those who
commit. Nobody waits for events to leave."""

_POLL_S: Final = 0.05

T = TypeVar("T")


class MaintenanceFailed(PipelineError):
    """The store would not, or could not, be changed as asked; what was done before stays done."""


class LogMaintainer(Protocol):
    """The hand on a store. Every change is durable when its call returns, and may be asked for again."""

    def extent(self) -> LogExtent: ...

    def put_snapshots(self, snapshots: Sequence[Snapshot]) -> None:
        """Store snapshots, some in a transaction; a newer one of the same partition and version stays.

        Only of durable events, and of the model in force or a newer one. AdminRefused when somebody else erased
        text since this maintainer was opened: open it before the states are folded.
        """
        ...

    def watermarks(self, model_version: int, model_digest: str = "") -> dict[str, int]:
        """partition → committed_id of its snapshot of that model; without a model the digest is empty."""
        ...

    def model_in_force(self) -> ModelBundle | None:
        """The model the server judges by; None where it has no version (its snapshots then have version 0)."""
        ...

    def set_archive(self, location: str) -> None:
        """Name the lake that has what leaves the log."""
        ...

    def prune(self, upto: int) -> int:
        """Let go some of the oldest events up to `upto`; how many went, 0 when there is nothing left to go."""
        ...

    def erase(self, tombstones: Sequence[tuple[int, bytes]], partitions: Sequence[str] = ()) -> int:
        """Put tombstones in the place of events, and drop the snapshots of their partitions and of `partitions`.

        How many events lost their text; those that have left the log, or were erased before, do not count.
        """
        ...

    def reclaim(self) -> None:
        """Give free space back, and wipe out what was erased."""
        ...

    def close(self) -> None: ...


def open_maintainer(store_uri: str) -> LogMaintainer:
    """A maintainer of the store; NoSuchStore says why there is none."""
    uri = normal_uri(store_uri)
    directory = sqlite_directory(uri)
    try:
        if directory is not None:
            return EmbeddedLogMaintainer(directory)
        return _open_postgres(uri)
    except StoreUnusable as error:
        raise NoSuchStore(str(error)) from error


def _open_postgres(uri: str) -> LogMaintainer:
    try:
        from unisono.pipeline.maintain.postgres import SharedLogMaintainer
    except ImportError as error:
        raise NoSuchStore(
            f"a PostgreSQL log needs the driver: pip install 'unisono[postgres]' ({error})"
        ) from error
    return SharedLogMaintainer(uri)


class EmbeddedLogMaintainer:
    """An embedded log, with or without a server. Reads look into the file themselves."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = AdminPort(directory)
        # StoreUnusable where there is no log; writing would make one.
        self._erasures = self._read(lambda reader: reader.erasures())

    def extent(self) -> LogExtent:
        return self._read(lambda reader: reader.extent())

    def watermarks(self, model_version: int, model_digest: str = "") -> dict[str, int]:
        return self._read(lambda reader: reader.watermarks(model_version, model_digest))

    def model_in_force(self) -> ModelBundle | None:
        return self._read(lambda reader: reader.model_in_force())

    def put_snapshots(self, snapshots: Sequence[Snapshot]) -> None:
        for batch in snapshot_batches(snapshots):
            some = Publication(self._erasures, batch)
            self._write(partial(_publish, publication=some), partial(AdminPort.snapshots, publication=some))

    def set_archive(self, location: str) -> None:
        self._write(lambda log: log.set_archive(location), lambda port: port.archive(location))

    def prune(self, upto: int) -> int:
        return self._write(lambda log: _prune(log, upto), lambda port: _prune_gently(port, upto))

    def erase(self, tombstones: Sequence[tuple[int, bytes]], partitions: Sequence[str] = ()) -> int:
        erased = 0
        for batch in tombstone_batches(tombstones):
            some = EraseRequest(batch, list(partitions))
            events, erasures = self._write(
                partial(_erase, erasure=some), partial(AdminPort.erase, erasure=some)
            )
            erased += events
            self._erasures += erasures == self._erasures + 1
        return erased

    def reclaim(self) -> None:
        until = time.monotonic() + SERVER_WAIT_S
        free = -1
        while not (left := self._write(_reclaim, AdminPort.reclaim)).done:
            if left.free_pages != free:
                free, until = left.free_pages, time.monotonic() + SERVER_WAIT_S
            elif time.monotonic() > until:
                raise MaintenanceFailed("a reader stays in the log's WAL, which cannot be emptied meanwhile")
            else:
                time.sleep(_POLL_S)

    def close(self) -> None:
        self._port.close()

    def _read(self, ask: Callable[[SqliteReader], T]) -> T:
        try:
            with closing(SqliteReader.open(self._directory)) as reader:
                return ask(reader)
        except StorageError as error:
            raise MaintenanceFailed(str(error)) from error

    def _write(self, direct: Callable[[SqliteLog], T], order: Callable[[AdminPort], T]) -> T:
        """By the server if there is one, and otherwise by ourselves."""
        until = time.monotonic() + SERVER_WAIT_S
        while True:
            try:
                try:
                    with closing(SqliteLog.open(self._directory, lock_wait_s=0)) as log:
                        return direct(log)
                except LogInUse as in_use:
                    try:
                        return order(self._port)
                    except Unreachable as error:
                        if time.monotonic() > until:
                            raise MaintenanceFailed(f"{in_use}; and its admin port: {error}") from error
            except (MaintenanceRefused, AdminRefused, StorageError, StoreUnusable) as error:
                raise MaintenanceFailed(str(error)) from error
            time.sleep(_POLL_S)


def named(bundle: ModelBundle | None) -> tuple[int, str]:
    """The version and the digest that snapshots of the model in force have."""
    return (NO_MODEL_VERSION, "") if bundle is None else (bundle.version, bundle.digest)


def _publish(log: SqliteLog, publication: Publication) -> None:
    require_publishable(publication.snapshots, log.head(), *named(log.model_in_force()))
    require_unerased(publication.erasures, log.erasures())
    log.put_snapshots(publication.snapshots)


def _prune(log: SqliteLog, upto: int) -> int:
    until = time.monotonic() + STEP_S
    gone = 0
    while (step := log.prune(upto)) and time.monotonic() < until:
        gone += step
    return gone + step


def _prune_gently(port: AdminPort, upto: int) -> int:
    started = time.monotonic()
    gone = port.prune(upto)
    if gone:
        time.sleep(REST * (time.monotonic() - started))
    return gone


def _erase(log: SqliteLog, erasure: EraseRequest) -> tuple[int, int]:
    done = log.erase(erasure.tombstones, erasure.partitions)
    return done.events, done.erasures


def _reclaim(log: SqliteLog) -> ReclaimProgress:
    """With nobody else on the log, what only a new file can give is done too."""
    until = time.monotonic() + STEP_S
    while not (left := log.reclaim()).done and time.monotonic() < until:
        pass
    if left.done and (left.unclean or left.free_pages):
        log.rewrite()
        return ReclaimProgress(True, 0)
    return left


def tombstone_batches(tombstones: Sequence[tuple[int, bytes]]) -> Iterator[list[Tombstone]]:
    """At least one, since partitions may be named without any event."""
    for start in range(0, max(1, len(tombstones)), ERASE_EVENTS_MAX):
        yield [Tombstone(*pair) for pair in tombstones[start : start + ERASE_EVENTS_MAX]]
