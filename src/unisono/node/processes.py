"""The processes of a node: how they are wired, started by fork, and what each one runs.

    node ── control ──► authority ◄── channel ──► front 0, front 1, …
    node ── control ──► reader    ◄── channel ──► front 0, front 1, …
    node ── control ──► front 0, front 1, …

Every child has only its own ends open, so that all its peers notice when it ends. Children ignore SIGINT and SIGTERM:
they end when the node sends Drain or is gone.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import current_process
from pathlib import Path

import uvloop

from unisono.authority.admin_commands import AdminCommands
from unisono.authority.clock import Clock
from unisono.authority.cluster_view import ClusterView, choose_model
from unisono.authority.group_size import REQUEST_S
from unisono.authority.loop import Authority
from unisono.authority.one_shot_thread import SWITCH_S
from unisono.authority.states.resident import States
from unisono.authority.stuck_rules import RunningCall
from unisono.config import Settings
from unisono.front.access import Access
from unisono.front.auth.verify import Verifier
from unisono.front.descriptors import raise_limit
from unisono.front.server import Front
from unisono.ipc.channel import Channel, ChannelClosed, socket_pair
from unisono.ipc.messages import Ready
from unisono.ipc.tracing import open_tracer
from unisono.lake.cold.archive import ArchivedReader
from unisono.model.load import Model
from unisono.node.heap import keep_freed_memory
from unisono.node.open_log import open_archive, open_reader, store_timeouts
from unisono.reader.process import Reader
from unisono.store.cluster import Cluster, ModelRefused
from unisono.store.port import CommitLog, StorageError, StoreUnusable
from unisono.store.sqlite.log import SqliteLog

log = logging.getLogger("unisono.node")

GC_THRESHOLDS = (10_000, 50, 100)
"""Rare enough to cost nothing, often enough that reference cycles do not pile up: refused messages leave some, and at
100,000 a front grew by 4 MB in 30,000 of them."""

AUTHORITY_ARCHIVE_CACHE_BYTES = 32 * 1024 * 1024
"""The authority loads a few partitions at a time from the archive, each from start to end."""

EXIT_UNUSABLE = 2
EXIT_FAILED = 1


def now_ms() -> int:
    """The server's clock, the only one (ENV-07)."""
    return time.time_ns() // 1_000_000


class StartFailed(Exception):
    """A child ended before it was ready; it wrote why on stderr."""

    def __init__(self, role: str, code: int) -> None:
        super().__init__(f"{role} did not start (exit code {code})")
        self.role = role
        self.code = code


class Child:
    """A forked process and the node's end of its control channel."""

    def __init__(self, role: str, pid: int, control: socket.socket) -> None:
        self.role = role
        self.pid = pid
        self.control = control

    def wait_ready(self) -> None:
        """Block until the child sends Ready; StartFailed when it ends instead."""
        channel = Channel(self.control)
        self.control.setblocking(True)
        try:
            if channel.receive() == [Ready()]:
                return
        except ChannelClosed:
            pass
        raise StartFailed(self.role, self.reap())

    def poll(self) -> int | None:
        """The exit code if the process has ended."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def reap(self) -> int:
        """Wait for the exit code."""
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


class ChildProcesses:
    """Forks children, each with exactly its own sockets open."""

    def __init__(self) -> None:
        self._open: set[socket.socket] = set()
        self.children: list[Child] = []

    def pair(self) -> tuple[socket.socket, socket.socket]:
        ends = socket_pair()
        self._open.update(ends)
        return ends

    def track(self, sockets: Sequence[socket.socket]) -> None:
        """Sockets that every child closes unless it gets them in `keep`."""
        self._open.update(sockets)

    def fork(self, role: str, keep: Sequence[socket.socket], run: Callable[[socket.socket], int]) -> Child:
        here, there = self.pair()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _become_child(role, there, {there, *keep}, self._open, run)
        there.close()
        self._open.discard(there)
        child = Child(role, pid, here)
        self.children.append(child)
        return child

    def close_child_ends(self) -> None:
        """Close the children's ends in the node."""
        controls = {child.control for child in self.children}
        for sock in self._open - controls:
            sock.close()
        self._open = controls

    def kill(self) -> None:
        for child in self.children:
            try:
                os.kill(child.pid, signal.SIGKILL)
                child.reap()
            except (ProcessLookupError, ChildProcessError):
                continue


def _become_child(
    role: str,
    control: socket.socket,
    keep: set[socket.socket],
    inherited: set[socket.socket],
    run: Callable[[socket.socket], int],
) -> None:
    code = EXIT_FAILED
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for sock in inherited - keep:
            sock.close()
        current_process().name = role  # the field `process` of log lines
        keep_freed_memory()
        code = run(control)
    except StoreUnusable as error:
        print(f"unisono: {error}", file=sys.stderr)  # noqa: T201
        code = EXIT_UNUSABLE
    except StorageError as error:
        log.critical("%s failed: %s", role, error, extra={"child": role, "error": str(error)})
        code = EXIT_FAILED
    except BaseException:
        log.exception("%s failed with an unexpected error", role, extra={"child": role})
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def open_log(settings: Settings) -> tuple[CommitLog, Cluster | None]:
    """The log to write, and its cluster if it is shared; the database driver is imported only then."""
    if settings.store is None:
        return SqliteLog.open(Path(settings.data)), None
    from unisono.store.postgres.log import PostgresLog

    name = settings.node_name or socket.gethostname()
    shared = PostgresLog.open(settings.store, name, timeouts=store_timeouts(settings))
    return shared, shared


def channels_to_fronts(settings: Settings, ends: Sequence[socket.socket]) -> list[Channel]:
    """One channel per front, in their order."""
    return [Channel(end, front_role(index), settings.stall_timeout_s) for index, end in enumerate(ends)]


def front_role(index: int) -> str:
    return f"front {index}"


def run_authority(
    settings: Settings,
    model: Model,
    control: socket.socket,
    fronts: Sequence[socket.socket],
    running: RunningCall | None = None,
) -> int:
    """The authority process."""
    sys.setswitchinterval(SWITCH_S)
    # States are trees of plain values without cycles: searching millions of them for cycles only costs time.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    store, cluster = open_log(settings)
    archive = open_archive(settings, AUTHORITY_ARCHIVE_CACHE_BYTES)
    archive.require_same_log(store)
    kept = store if isinstance(store, SqliteLog) else None
    record = None if kept is None else partial(kept.record_model, replace=settings.allow_model_edits)
    cluster_view = ClusterView(cluster, accept_init=settings.accept_init, record_model=record)
    try:
        model = choose_model(cluster_view, model)
    except ModelRefused as error:
        raise StoreUnusable(str(error)) from None
    states = States(
        model,
        store,
        bytes_max=settings.max_states_bytes,
        snapshot_every=settings.snapshot_every_events,
        now_ms=now_ms,
        archive=archive,
        rule_timeout_s=settings.rule_timeout_s,
        running=running,
    )
    tracer = open_tracer(
        settings.otel_endpoint, settings.otel_sample, settings.node_name or socket.gethostname()
    )
    authority = Authority(
        store,
        states,
        node=Channel(control, "node", settings.stall_timeout_s),
        fronts=channels_to_fronts(settings, fronts),
        clock=Clock(now_ms, store.last_status_updated_at()),
        perf=time.monotonic,  # the clock of the fronts' loops: the console compares times of both
        execute=AdminCommands(settings, kept, store).execute,
        cluster=cluster_view,
        request_s=min(REQUEST_S, settings.store_group_timeout_s / 4),
        tracer=tracer,
    )
    authority.run()
    store.close()
    if tracer is not None:
        tracer.close()
    return 0


def run_reader(settings: Settings, control: socket.socket, fronts: Sequence[socket.socket]) -> int:
    """The reader process."""
    log_reader = open_reader(settings)
    archive = open_archive(settings, settings.max_archive_cache_bytes)
    archive.last_pruned_event(log_reader.extent())
    Reader(
        log_reader,
        Channel(control, "node", settings.stall_timeout_s),
        channels_to_fronts(settings, fronts),
        lambda cold_watermarks: ArchivedReader(open_reader(settings), archive, cold_watermarks),
    ).run()
    log_reader.close()
    return 0


def run_front(
    index: int,
    settings: Settings,
    make_verifier: Callable[[], Verifier],
    access: Access,
    *,
    control: socket.socket,
    authority: socket.socket,
    reader: socket.socket,
    listening: Sequence[socket.socket],
) -> int:
    """A front process."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    raise_limit()

    async def main() -> int:
        front = Front(index, settings, make_verifier(), access)
        await front.start(authority=authority, reader=reader, node=control, listening=listening)
        code = await front.exit_code
        await front.close()
        return code

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
