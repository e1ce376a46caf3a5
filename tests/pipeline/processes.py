"""Commands as processes of their own, and finding the processes that Spark starts."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

COMMAND = (sys.executable, "-m", "unisono", "lake")
WAIT_S = 100.0


def start(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    """`unisono lake …`, running."""
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **variables},
    )


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`unisono lake …`, to its end."""
    process = start(*arguments, **variables)
    try:
        out, err = process.communicate(timeout=WAIT_S * 2)
    except subprocess.TimeoutExpired:
        kill(process)
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def wait_until(condition: Callable[[], object], process: subprocess.Popen[str] | None = None) -> bool:
    """True when it has come about; False when the process ended before."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if process is not None and process.poll() is not None:
            return bool(condition())
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.002)
    return True


def kill(process: subprocess.Popen[str]) -> bool:
    """kill -9; whether it was still alive."""
    alive = process.poll() is None
    process.kill()
    process.communicate()
    return alive


def kill_workers(java: int, job: threading.Thread, chance: random.Random, pause_s: float, most: int) -> int:
    """kill -9 of Python workers at random, while the job runs; how many, at most `most`."""
    kills = 0
    while job.is_alive() and kills < most:
        time.sleep(chance.uniform(0, pause_s))
        workers = python_workers(java)
        if workers and job.is_alive():
            try:
                os.kill(chance.choice(workers), signal.SIGKILL)
            except ProcessLookupError:
                continue
            kills += 1
    job.join()
    return kills


def python_workers(java: int) -> list[int]:
    """The Python processes that run tasks for the local Spark of this Java process."""
    parents = _parents()
    daemons = {pid for pid, parent in parents.items() if parent == java}
    return [pid for pid, parent in parents.items() if parent in daemons]


@contextmanager
def file_size_limit(java: int, bytes_max: int) -> Iterator[None]:
    """As if the disk were full for the tasks of this Java process: no file of theirs can be longer."""
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)

    def limit(limits: tuple[int, int]) -> None:
        daemons = [pid for pid, parent in _parents().items() if parent == java]
        for pid in (*daemons, *python_workers(java)):
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)

    limit((bytes_max, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        limit(unlimited)


def _parents() -> dict[int, int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    return parents
