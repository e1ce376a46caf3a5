"""How the pipeline changes a log: it stores snapshots, prunes archived events, erases text and reclaims space.

An embedded log has one writer. While a server runs on it, each step is a command to the server's admin port, executed
between two groups. While none runs, this process takes the directory's lock for the step. The choice is made for
every step, so a server may start or stop during a job. A shared log is changed over its owner's connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec

from unisono.extras import install_command
from unisono.pipeline.errors import NoSuchStore, PipelineError
from unisono.pipeline.maintain.admin_http import AdminPort, AdminRefused, Unreachable
from unisono.pipeline.open_log import normal_uri, sqlite_directory
from unisono.store.cluster import ModelBundle
from unisono.store.maintenance import (
    ERASE_EVENTS_MAX,
    NO_MODEL_VERSION,
    PRUNE_EVENTS_ALONE,
    PUBLISH_SNAPSHOTS_ALONE,
    EraseRequest,
    MaintenanceRefused,
    Publication,
    ReclaimProgress,
    Tombstone,
    publications,
    require_publishable,
    require_unerased,
)
from unisono.store.port import LogExtent, LogInUse, Snapshot, StorageError, StoreUnusable
from unisono.store.sqlite.log import SqliteLog, SqliteReader

STEP_S: Final = 0.5
"""How long one step holds the lock of a log without a server; a server that starts waits ten times as long."""

SERVER_WAIT_S: Final = 20.0
"""How long a server that starts, stops or is busy may take to accept a command."""

REST: Final = 2.0
"""Pause after a pruning or sweeping step beside a server, as a multiple of the step's duration: commits come first,
and nobody waits for pruning."""

_POLL_S: Final = 0.05

Answer = dict[str, Any]
"""What a command did, as the admin port says it."""

Direct = Callable[[SqliteLog], Answer | None]
"""The same change made by this process; None is an empty answer."""

T = TypeVar("T")


class MaintenanceFailed(PipelineError):
    """The log refused a change, or could not be reached; earlier changes stay."""


class LogMaintainer(Protocol):
    """Changes one log. Every change is durable when its call returns, and repeating it is harmless."""

    def extent(self) -> LogExtent: ...

    def put_snapshots(self, snapshots: Sequence[Snapshot]) -> None:
        """Store snapshots in bounded transactions; a newer one of the same partition and version stays.

        They cover durable events only, under the model in force or a newer one. MaintenanceFailed when text was
        erased by another process since this maintainer was opened: open it before the states are folded.
        """
        ...

    def erasures(self) -> int:
        """How many erasures the log had when this was opened, and by this."""
        ...

    def model_in_force(self) -> ModelBundle | None:
        """The model in force; None where it has no version (its snapshots then have version 0)."""
        ...

    def set_archive(self, location: str) -> None:
        """Set the lake that has the pruned events."""
        ...

    def prune_step(self, upto: int) -> int:
        """Remove some of the oldest events up to `upto`; how many, 0 when none is left."""
        ...

    def erase(self, tombstones: Sequence[tuple[int, bytes]], partitions: Sequence[str] = ()) -> int:
        """Replace events by tombstones, and drop the snapshots of their partitions and of `partitions`.

        Returns how many events were erased; pruned ones and those erased before do not count.
        """
        ...

    def reclaim(self) -> None:
        """Return free space to the file system, and remove all traces of erased text."""
        ...

    def close(self) -> None: ...


def open_maintainer(store_uri: str) -> LogMaintainer:
    """The maintainer of the log at `store_uri`; raises NoSuchStore."""
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
            f"a PostgreSQL log needs the driver: {install_command('postgres')} ({error})"
        ) from error
    return SharedLogMaintainer(uri)


class EmbeddedLogMaintainer:
    """An embedded log, with or without a server. Reads open the file directly."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = AdminPort(directory)
        # StoreUnusable where there is no log; opening it for writing would create one.
        self._erasures = self._read(lambda reader: reader.erasures())

    def extent(self) -> LogExtent:
        return self._read(lambda reader: reader.extent())

    def erasures(self) -> int:
        return self._erasures

    def model_in_force(self) -> ModelBundle | None:
        return self._read(lambda reader: reader.model_in_force())

    def put_snapshots(self, snapshots: Sequence[Snapshot]) -> None:
        left = [Publication(self._erasures, batch) for batch in publications(snapshots)]
        while left:  # all at once by this process, one after the other by a server
            answer = self._change(partial(_publish, left=left), "snapshots", left[0])
            left = left[answer.get("publications", 1) :]

    def set_archive(self, location: str) -> None:
        self._change(lambda log: log.set_archive(location), "archive", location)

    def prune_step(self, upto: int) -> int:
        return int(self._change(partial(_prune_batches, upto=upto), "prune", upto)["events"])

    def erase(self, tombstones: Sequence[tuple[int, bytes]], partitions: Sequence[str] = ()) -> int:
        erased = 0
        for batch in tombstone_batches(tombstones):
            request = EraseRequest(batch, list(partitions))
            done = self._change(partial(_erase, request=request), "erase", request)
            erased += done["events"]
            self._erasures += done["erasures"] == self._erasures + 1
        return erased

    def reclaim(self) -> None:
        until = time.monotonic() + SERVER_WAIT_S
        free = -1
        while not (result := msgspec.convert(self._change(_reclaim, "reclaim"), ReclaimProgress)).done:
            if result.sweeping or result.free_pages != free:
                free, until = result.free_pages, time.monotonic() + SERVER_WAIT_S
            elif time.monotonic() > until:
                raise MaintenanceFailed("a reader keeps the log's WAL open, so it cannot be truncated")
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

    def _change(self, direct: Direct, command: str, argument: object = None) -> Answer:
        """By the server if one runs, otherwise by this process; both give the same answer."""
        until = time.monotonic() + SERVER_WAIT_S
        while True:
            try:
                try:
                    opened = SqliteLog.open(self._directory, lock_wait_s=0, for_groups=False)
                    with closing(opened) as log:
                        return direct(log) or {}
                except LogInUse as in_use:
                    try:
                        return self._execute(command, argument)
                    except Unreachable as error:
                        if time.monotonic() > until:
                            raise MaintenanceFailed(f"{in_use}; its admin port: {error}") from error
            except (MaintenanceRefused, AdminRefused, StorageError, StoreUnusable) as error:
                raise MaintenanceFailed(str(error)) from error
            time.sleep(_POLL_S)

    def _execute(self, command: str, argument: object) -> Answer:
        started = time.monotonic()
        answer = self._port.execute(command, argument)
        if answer.get("events" if command == "prune" else "sweeping"):
            time.sleep(REST * (time.monotonic() - started))
        return answer


def model_key(bundle: ModelBundle | None) -> tuple[int, str]:
    """The version and digest in snapshots of the model in force."""
    return (NO_MODEL_VERSION, "") if bundle is None else (bundle.version, bundle.digest)


def _publish(log: SqliteLog, left: Sequence[Publication]) -> Answer:
    key, head = model_key(log.model_in_force()), log.head()
    for publication in left:
        require_publishable(publication.snapshots, head, *key)
        require_unerased(publication.erasures, log.erasures())
        log.put_snapshots(publication.snapshots, per_transaction=PUBLISH_SNAPSHOTS_ALONE)
    return {"publications": len(left)}


def _prune_batches(log: SqliteLog, upto: int) -> Answer:
    until = time.monotonic() + STEP_S
    events = 0
    while (batch := log.prune_batch(upto, limit=PRUNE_EVENTS_ALONE)) and time.monotonic() < until:
        events += batch
    return {"events": events + batch}


def _erase(log: SqliteLog, request: EraseRequest) -> Answer:
    done = log.erase(request.tombstones, request.partitions)
    return {"events": done.events, "erasures": done.erasures}


def _reclaim(log: SqliteLog) -> Answer:
    """Nobody else has the log open, so a file that cannot shrink or has traces of erased text is written again."""
    until = time.monotonic() + STEP_S
    while not (result := log.reclaim(alone=True)).done and not result.unclean and time.monotonic() < until:
        pass
    if result.unclean or (result.done and result.free_pages):
        log.rewrite()
        result = ReclaimProgress(True, 0)
    answer: Answer = msgspec.to_builtins(result)
    return answer


def tombstone_batches(tombstones: Sequence[tuple[int, bytes]]) -> Iterator[list[Tombstone]]:
    """At least one batch, possibly empty: partitions may be given without any event."""
    for start in range(0, max(1, len(tombstones)), ERASE_EVENTS_MAX):
        yield [Tombstone(*pair) for pair in tombstones[start : start + ERASE_EVENTS_MAX]]
