"""What the machine itself can do, in the same run: appends that are synced, and round trips of a WebSocket."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.comparison.measure import Sample, combined, percentile, results_of, started
from benchmarks.comparison.results import Table
from benchmarks.comparison.rounds import Contender, play
from benchmarks.generators.order import Client, Order
from benchmarks.peers.system import GENERATOR, HOST, ROOT

WAL_FRAME_BYTES = 4096 + 24
WAL_FRAMES = 4
"""What SQLite appends for the commit of one event, on average: pages of the table and of its indexes."""


def fdatasyncs(folder: Path, seconds: float) -> Sample:
    """Appends of the size of a small commit, each made durable."""
    path, block = folder / "probe", b"x" * (WAL_FRAME_BYTES * WAL_FRAMES)
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    taken: list[int] = []
    started_at = time.perf_counter()
    try:
        while time.perf_counter() - started_at < seconds:
            before = time.perf_counter_ns()
            os.pwrite(descriptor, block, len(taken) % 1000 * len(block))
            os.fdatasync(descriptor)
            taken.append((time.perf_counter_ns() - before) // 1000)
    finally:
        os.close(descriptor)
        path.unlink()
    taken.sort()
    p50, p90, p99 = (percentile(taken, part) / 1000 for part in (0.5, 0.9, 0.99))
    return Sample(len(taken) / seconds, p50, p90, p99)


@contextmanager
def echo_server() -> Iterator[int]:
    """The port of a process that sends back what it gets."""
    command = [sys.executable, "-m", "benchmarks.generators.echo"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.communicate()


def echoes(port: int, connections: int, seconds: float) -> Sample:
    clients = [Client(f"e{number}", []) for number in range(connections)]
    asked = Order("submit", "echo", HOST, port, clients, "echo", seconds)
    with started([GENERATOR], [asked]) as processes:
        (counted,) = results_of(processes)
    return combined([counted], counted.cpu_s / counted.elapsed_s)


def raw_limits(folder: Path, port: int, rounds: int, seconds: float) -> Table:
    contenders = [
        Contender("fdatasync", lambda _: fdatasyncs(folder, seconds)),
        Contender("echo, 1 connection", lambda _: echoes(port, 1, seconds)),
        Contender("echo, 50 connections", lambda _: echoes(port, 50, seconds)),
    ]
    return play("raw", "Raw limits", "per s", contenders, rounds)


def floor(folder: Path, port: int, seconds: float) -> Sample:
    """One fdatasync and one echo: what a lone durable submit cannot be faster than."""
    sync, echo = fdatasyncs(folder, seconds), echoes(port, 1, seconds)
    p50 = sync.p50_ms + echo.p50_ms
    return Sample(1000 / p50, p50, sync.p90_ms + echo.p90_ms, sync.p99_ms + echo.p99_ms)
