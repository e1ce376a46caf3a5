"""What the machine itself can do, in the same run: appends that are synced, and round trips of a WebSocket."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from benchmarks.comparison.measure import GeneratorFailed, Sample, combined, percentile, started
from benchmarks.comparison.results import Table
from benchmarks.comparison.rounds import Contender, play
from benchmarks.generators.order import Client, Counted, Order
from benchmarks.peers.system import HOST, ROOT

WAL_FRAME_BYTES = 4096 + 24
WAL_FRAMES = 3
"""What SQLite appends for a small commit: a page of the table, one of an index, one more now and then."""


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
    with started([[sys.executable, "-m", "benchmarks.generators"]], [asked]) as (process,):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise GeneratorFailed("the echo gave no result")
        counted = msgspec.json.decode(line, type=Counted)
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
