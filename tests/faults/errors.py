"""The disk reports an error: system calls of the authority fail, by strace, while clients write."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest

from tests.behaviour.server.harness import Server
from tests.behaviour.server.killing import SERVE, expect_nothing_left
from tests.faults.workload import Load, Tally, load
from tests.waiting import PATIENCE_S, until
from unisono.store.sqlite.files import LOG_FILE
from unisono.store.sqlite.wal_space import FREE_BYTES_MIN, LOADED_STEP_BYTES

STARTED, CALLS_AT_START_MAX = "unisono ready", 200
CLIENTS = {"writers": 4, "followers": 1, "browsers": 1}
EXIT_FAILED, EXIT_UNUSABLE = 1, 2


@cache
def why_not() -> str:
    """Why calls cannot be made to fail here; empty when they can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    with subprocess.Popen(["sleep", "60"]) as victim:
        tracing = ["strace", "-p", str(victim.pid), "-e", "inject=fdatasync:error=EIO"]
        with subprocess.Popen(tracing, stderr=subprocess.PIPE, text=True) as strace:
            assert strace.stderr is not None
            told = strace.stderr.readline().strip()
            strace.send_signal(signal.SIGINT)
        victim.kill()
    return "" if "attached" in told else f"strace cannot trace here: {told}"


def require_strace() -> None:
    if reason := why_not():
        pytest.skip(reason)


@contextmanager
def failing(pid: int, call: str, when: int, report: Path) -> Iterator[None]:
    """The `when`th `call` of a process, counted from now, fails with EIO; the others do what they do."""
    with report.open("w") as told:
        strace = subprocess.Popen(
            [
                "strace",
                "-f",
                "-p",
                str(pid),
                "-e",
                f"trace={call}",
                "-e",
                f"inject={call}:error=EIO:when={when}",
            ],
            stderr=told,
        )
    try:
        until(lambda: "attached" in report.read_text(), lambda: f"not attached: {report.read_text()}")
        yield
    finally:
        strace.send_signal(signal.SIGINT)
        strace.wait(PATIENCE_S)


def fail_calls(data: Path, calls: Sequence[tuple[str, int]], seed: int) -> Tally:
    """For each (call, number) a life of the server that ends when that call fails; one history of all of them."""
    server = Server(data, *SERVE).start()
    try:
        with load([server], seed=seed, **CLIENTS) as work:
            for call, when in calls:
                _fail(server, work, call, when)
                work.places.open(server.start())
            work.expect_progress()
            tally = work.settle(data, [server])
            assert server.stop() == 0
            return tally
    finally:
        server.kill()


def _fail(server: Server, work: Load, call: str, when: int) -> None:
    """Documented as fail-stop: nothing of the group is acknowledged, the server ends with 1 and says why."""
    authority, *_ = server.children()
    _until_room(server.data)
    report = server.data.parent / "strace.txt"
    said = len(server.log.read_text())
    work.fault(f"EIO from {call} {when}")
    with failing(authority, call, when, report):
        code = server.process.wait(timeout=PATIENCE_S)
        work.places.close(server)
    assert "EIO (Input/output error) (INJECTED)" in report.read_text()
    assert code == EXIT_FAILED, f"{call} {when}: the server ended with {code}"
    expect_nothing_left(server)
    log = server.log.read_text()[said:]
    assert "log failed, stopping" in log, log
    assert "Traceback" not in log, log
    server.kill()


def _until_room(data: Path) -> None:
    """Until the WAL has its room for the next thousand commits, so that what fails is a commit."""
    wal = data / f"{LOG_FILE}-wal"
    if shutil.disk_usage(data).free >= FREE_BYTES_MIN:
        until(lambda: wal.stat().st_size > LOADED_STEP_BYTES, lambda: f"{wal.stat().st_size} bytes of WAL")


def fail_starts(data: Path, call: str, seed: int) -> int:
    """Each `call` of a start after a crash fails once: the server does not start and says why, and later it does.

    Returns how many there are.
    """
    server = Server(data, *SERVE).start()
    try:
        with load([server], seed=seed, **CLIENTS) as work:
            work.expect_progress()
            for when in range(1, CALLS_AT_START_MAX):
                work.places.close(server)
                work.fault(f"EIO from {call} {when} of a start")
                server.kill()
                started = _starts(server, call, when)
                work.places.open(server.start())
                work.expect_progress()
                if started:
                    break
            else:
                raise AssertionError(f"a start makes more than {CALLS_AT_START_MAX} calls of {call}")
            work.settle(data, [server])
            assert server.stop() == 0
            return when - 1
    finally:
        server.kill()


def _starts(server: Server, call: str, when: int) -> bool:
    """Whether the server starts because it makes fewer of these calls.

    It also starts when the directory cannot be synced by SQLite, which takes no notice of that; the server itself
    syncs it later. A server that is ready has written all of its start to the WAL: what fails there is room.
    """
    said = len(server.log.read_text())
    report = server.data.parent / "strace.txt"
    inject = ("-e", f"trace={call}", "-e", f"inject={call}:error=EIO:when={when}")
    command = [sys.executable, "-m", "unisono", *server.serve_arguments()]
    with server.log.open("a") as log:
        process = subprocess.Popen(
            ["strace", "-f", "-y", "-o", str(report), *inject, *command],
            stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
        )  # fmt: skip
    assert process.stdout is not None
    try:
        ready = process.stdout.readline().startswith(STARTED)
        failed = [line for line in report.read_text().splitlines() if "INJECTED" in line]
        if ready:
            of_start = [line for line in failed if f"<{server.data / LOG_FILE}-wal>" not in line]
            assert all(f"<{server.data}>" in line for line in of_start), failed
            return not of_start
        assert process.wait(PATIENCE_S) in (EXIT_FAILED, EXIT_UNUSABLE)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)
        process.stdout.close()
    assert failed
    told = server.log.read_text()[said:]
    assert "I/O error" in told or "Input/output error" in told, told
    assert "Traceback" not in told, told
    return False
