"""A subscriber that stops reading, among others that read, while much is broadcast."""

from __future__ import annotations

import subprocess
import sys
import time
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from tests.behaviour.server.harness import Closed, Peer, Server, item, set_event
from tests.forking import ROOT
from tests.history.recorder import Recorder
from tests.waiting import PATIENCE_S, until
from unisono.protocol.errors import CloseCode
from unisono.store.sqlite.reader import SqliteReader

EVENT_BYTES = 16_000
BATCH = 20
SERVE = ("--access-default", "allow", "--log-level", "warning", "--close-grace-s", "2")
RECORDED_BYTES_MAX = 2 << 30
PARTITION = "p"
WARM_UP = 10
"""Batches before the reader stops, so that the memory that broadcasts need anyway is not counted for it."""


class Outcome(msgspec.Struct, frozen=True):
    """What a run came to. `held_bytes`: how much the front's memory grew at most after the reader had stopped."""

    broadcasts: int
    p50_ms: float
    p99_ms: float
    closed_after_s: float | None
    held_bytes: int


def broadcast(data: Path, *, total_bytes: int, healthy: int, stopped: bool) -> Outcome:
    """Send so many bytes to each of the healthy ones, with or without one more that stops reading."""
    batches = max(WARM_UP + 1, total_bytes // (BATCH * EVENT_BYTES))
    server = Server(data, *SERVE)
    server.recorder = Recorder(complete=True, bytes_max=RECORDED_BYTES_MAX)
    server.start()
    try:
        tokens = [server.token(f"healthy-{number}") for number in range(healthy)]
        drain = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.faults.draining",
                server.url,
                PARTITION,
                str(batches * BATCH),
                *tokens,
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        assert drain.stdout is not None
        try:
            assert drain.stdout.readline() == b"ready\n"
            sent, closed_after_s, held = _write(server, batches, stopped=stopped)
            arrivals = array("d")
            arrivals.frombytes(drain.stdout.read())
            assert drain.wait(PATIENCE_S) == 0
        finally:
            drain.kill()
            drain.stdout.close()
            drain.wait()
        assert server.stop() == 0
        with closing(SqliteReader.open(data)) as reader:
            server.recorder.judge(reader)
    finally:
        server.kill()
    assert len(arrivals) == healthy * batches * BATCH, "a healthy subscriber misses broadcasts"
    delays = sorted(at - sent[place % len(sent)] for place, at in enumerate(arrivals))
    return Outcome(len(sent), 1000 * _share(delays, 0.5), 1000 * _share(delays, 0.99), closed_after_s, held)


def _write(server: Server, batches: int, *, stopped: bool) -> tuple[list[float], float | None, int]:
    """When each event was sent, how long the stopped one was connected, and how much was held for it."""
    _, _, front = server.children()
    others = server.metric("unisono_connections")
    sent: list[float] = []
    with (
        server.client("writer") as writer,
        server.client("witness") as witness,
        ThreadPoolExecutor(1) as pool,
    ):
        witness.subscribe(PARTITION)
        for number in range(WARM_UP):
            sent += [time.monotonic()] * BATCH
            _one_batch(writer, witness, number)
        before = _peak_bytes(front)
        slow = server.client("slow") if stopped else None
        if slow is not None:
            seen = slow.subscribe(PARTITION)["sync_to_committed_id"]
            closed = pool.submit(_closed_after, server, others + 2)
        for number in range(WARM_UP, batches):
            sent += [time.monotonic()] * BATCH
            _one_batch(writer, witness, number)
        closed_after_s = None
        if slow is not None:
            closed_after_s = closed.result(2 * PATIENCE_S)
            _come_back(server, slow, seen, len(sent))
        return sent, closed_after_s, _peak_bytes(front) - before


def _one_batch(writer: Peer, witness: Peer, number: int) -> None:
    """The next batch waits until this one was broadcast: nobody who reads falls behind."""
    results = writer.submit(
        *(
            item([PARTITION], set_event("text", f"{number}-{place}-{'x' * EVENT_BYTES}"))
            for place in range(BATCH)
        )
    )
    assert {result["status"] for result in results} == {"committed"}
    for result in results:
        assert witness.expect("event_broadcast")["committed_id"] == result["committed_id"]


def _closed_after(server: Server, connections: float) -> float:
    """How long it takes until no more than so many connections are left."""
    began = time.monotonic()
    until(lambda: server.metric("unisono_connections") <= connections, "the slow consumer is still held")
    return time.monotonic() - began


def _come_back(server: Server, slow: Peer, seen: int, head: int) -> None:
    """What it reads at last has no hole, and a sync from there gives the rest (BCAST-04)."""
    with closing(slow), suppress(Closed):
        while True:
            assert slow.expect("event_broadcast")["committed_id"] == seen + 1
            seen += 1
    assert seen < head, "it was not slow"
    assert server.metric("unisono_closes_total", code=str(int(CloseCode.SLOW_CONSUMER))) == 1
    with server.client("slow") as again:
        events = again.history([PARTITION], seen)
    assert [event["committed_id"] for event in events] == list(range(seen + 1, head + 1))


def _peak_bytes(pid: int) -> int:
    """The most memory that a process has ever had."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _share(ordered: Sequence[float], share: float) -> float:
    return ordered[int(share * (len(ordered) - 1))]
