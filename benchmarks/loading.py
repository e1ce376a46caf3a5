"""What loading one large partition costs the others: commit latency beside a load, and without one.

Builds a log with one partition of many events, starts a real authority process on it, and commits single
events to another partition in a closed loop, first alone, then while the large partition is loaded because
an event for it was submitted, then alone again. The same once more from a snapshot of the large partition,
written by order.

    python -m benchmarks.loading [--events 1000000] [--alone-s 5]
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from tests.authority.logs import grow
from tests.authority.seat import Caller, End, FrontEnd, candidate, push, put, results_of

from unisono.config import Settings
from unisono.ipc.channel import Channel, socket_pair
from unisono.ipc.messages import AdminCommand, BatchOutcome, CommandResult, Drain, Message, Offer
from unisono.model.model import no_model
from unisono.node.processes import ChildProcesses, run_authority
from unisono.store.sqlite.log import SqliteLog

LARGE, OTHER = "large", "other"
_numbers = count()


def build(data: Path, events: int) -> None:
    started = time.perf_counter()

    def progress(done: int) -> None:
        if done % 100_000 == 0:
            print(f"  {done:,} events after {time.perf_counter() - started:.0f} s", flush=True)

    log = SqliteLog.open(data)
    grow(log, LARGE, events, progress=progress)
    log.close()


@contextmanager
def authority(data: Path) -> Iterator[tuple[End, FrontEnd]]:
    """An authority process as a node starts it, with the node's and one front's end."""
    processes = ChildProcesses()
    outside, inside = socket_pair()
    settings = Settings(data=str(data), snapshot_every_events=0)
    child = processes.fork(
        "authority", [inside], lambda control: run_authority(settings, no_model(), control, [inside])
    )
    inside.close()
    child.wait_ready()
    node, front = End(Channel(child.control)), FrontEnd(Channel(outside))
    front.of(Offer)
    try:
        yield node, front
        node.send(Drain())
        if child.reap() != 0:
            raise SystemExit("the authority failed")
    except BaseException:
        os.kill(child.pid, signal.SIGKILL)
        raise
    finally:
        node.close()
        front.close()


def commit_until(busy: Caller, done: Callable[[list[Message]], bool]) -> list[float]:
    """Latencies of single commits, one after the other, until what the front was told is enough."""
    latencies: list[float] = []
    while not done(busy.front.forget()):
        item = candidate([OTHER], put("x", next(_numbers)))
        started = time.perf_counter()
        busy.submit(item)
        latencies.append(time.perf_counter() - started)
    return latencies


def alone(busy: Caller, seconds: float) -> list[float]:
    end = time.perf_counter() + seconds
    return commit_until(busy, lambda _: time.perf_counter() >= end)


def beside_a_load(busy: Caller, waiting: Caller) -> tuple[float, list[float]]:
    """Seconds until an event for the large partition is committed, and latencies meanwhile."""
    started = time.perf_counter()
    waiting.send(candidate([LARGE], push(f"new {next(_numbers)}", "outline")))

    def committed(told: list[Message]) -> bool:
        answers = [results_of(m) for m in told if isinstance(m, BatchOutcome) and m.conn == waiting.conn]
        assert all(result.status == "committed" for results in answers for result in results)
        return bool(answers)

    latencies = commit_until(busy, committed)
    return time.perf_counter() - started, latencies


def show(name: str, latencies: list[float]) -> None:
    ordered = sorted(one * 1000 for one in latencies)
    p99 = ordered[int(len(ordered) * 0.99)]
    median = statistics.median(ordered)
    print(f"  {name:<34}{len(ordered):>8,}{median:>10.2f}{p99:>10.2f}{ordered[-1]:>10.2f}", flush=True)


def measure(data: Path, name: str, seconds: float, *, snapshot: bool) -> None:
    with authority(data) as (node, front):
        busy, waiting = front.connect("busy"), front.connect("waiting")
        before = alone(busy, seconds)
        took, beside = beside_a_load(busy, waiting)
        after = alone(busy, seconds)
        print(f"\n{name}: loaded in {took:.2f} s")
        print(f"  {'commits of the other partition, ms':<34}{'n':>8}{'median':>10}{'p99':>10}{'max':>10}")
        show("alone, before", before)
        show("while it was loaded", beside)
        show("alone, after", after)
        if snapshot:
            started = time.perf_counter()
            node.send(AdminCommand(1, "snapshot", LARGE))
            report = node.of(CommandResult)
            took = time.perf_counter() - started
            print(f"\nsnapshot by order: {took:.2f} s, {report.body.decode()}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--alone-s", type=float, default=5.0)
    parser.add_argument("--data", type=Path, help="keep the log here and use it again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        data = options.data or Path(place) / "data"
        if not (data / "log.db").exists():
            print(f"building {options.events:,} events", flush=True)
            build(data, options.events)
        measure(data, f"{options.events:,} events from the log", options.alone_s, snapshot=True)
        measure(data, "the same from its snapshot", options.alone_s, snapshot=False)


if __name__ == "__main__":
    main()
