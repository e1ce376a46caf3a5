"""Running generators against a system, and what they find together."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from benchmarks.generators.order import Counted, Order, Work
from benchmarks.peers.system import HOST, ROOT, System

GENERATOR_LIMIT_CORES = 0.85
"""A generator process that uses more of a core may be what limits a figure."""


class Sample(msgspec.Struct, frozen=True):
    """What one round found. `generator_cores`: of the busiest generator process."""

    rate: float
    p50_ms: float = 0.0
    p90_ms: float = 0.0
    p99_ms: float = 0.0
    generator_cores: float = 0.0
    server_cores: float = 0.0


class GeneratorFailed(Exception):
    """A generator ended without a result; the text is what it said."""


def order(
    system: System,
    work: Work,
    clients: Sequence[tuple[str, Sequence[str]]],
    *,
    run: str,
    seconds: float,
    batch: int = 1,
    warm_s: float = 0.5,
    items_max: int = 0,
    source_address: str = "",
) -> Order:
    """An order for clients given as name and topics."""
    return Order(
        work, system.wire, HOST, system.port, [system.client(name, topics) for name, topics in clients],
        run, seconds, warm_s, batch, items_max, source_address,
    )  # fmt: skip


def measure(
    system: System, orders: Sequence[Order], counts: Callable[[Order], bool] = lambda _: True
) -> Sample:
    """Run the orders at the same time; those that count make the sample."""
    with started([system.generator(one.work) for one in orders], orders) as processes:
        before, began = system.cpu_s(), time.perf_counter()
        results = results_of(processes)
        server_cores = (system.cpu_s() - before) / (time.perf_counter() - began)
    counted = [result for one, result in zip(orders, results, strict=True) if counts(one)]
    busiest = max(result.cpu_s / result.elapsed_s for result in results)
    return combined(counted, busiest, server_cores)


def results_of(processes: Sequence[subprocess.Popen[str]]) -> list[Counted]:
    """Let generators begin together, and wait for what they count."""
    for process in processes:
        _say(process, "go")
    return [_result(process) for process in processes]


def combined(counted: Sequence[Counted], generator_cores: float = 0.0, server_cores: float = 0.0) -> Sample:
    """Rates add up; latencies are looked at together."""
    rate = sum(one.items / one.elapsed_s for one in counted)
    latencies = sorted(taken for one in counted for taken in one.latencies_us)
    p50, p90, p99 = (percentile(latencies, part) / 1000 for part in (0.5, 0.9, 0.99))
    return Sample(rate, p50, p90, p99, generator_cores, server_cores)


def percentile(ordered: Sequence[int], part: float) -> float:
    """The value that this part of all values does not exceed; 0 of none."""
    if not ordered:
        return 0.0
    return float(ordered[min(len(ordered) - 1, int(len(ordered) * part))])


@contextmanager
def started(commands: Sequence[list[str]], orders: Sequence[Order]) -> Iterator[list[subprocess.Popen[str]]]:
    """Generators that have their connections open. Ended with the block, whatever happens."""
    processes = [
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for command in commands
    ]
    try:
        for process, one in zip(processes, orders, strict=True):
            _say(process, msgspec.json.encode(one).decode())
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise _failed(process)
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


@contextmanager
def holding(system: System, names: Sequence[str], topic: str) -> Iterator[None]:
    """Connected clients that do nothing, for the time of the block."""
    held = order(system, "hold", [(name, [topic]) for name in names], run="hold", seconds=0)
    with started([system.generator("hold")], [held]):
        yield


def _say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(line + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        raise _failed(process) from None


def _result(process: subprocess.Popen[str]) -> Counted:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise _failed(process)
    return msgspec.convert(json.loads(line), Counted)


def _failed(process: subprocess.Popen[str]) -> GeneratorFailed:
    process.kill()
    _, said = process.communicate()
    return GeneratorFailed(said.strip()[-1000:] or f"a generator ended with {process.returncode}")
