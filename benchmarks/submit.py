"""Durable commits per second of one front and one authority, beside the disk's own fdatasync rate.

Each connection submits one event of about 400 bytes, waits for its result, and submits the next (a closed
loop). The two measurements alternate in one run; medians are shown with their ratio.

    python -m benchmarks.submit [--connections 50] [--seconds 4] [--rounds 5] [--batch 1]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
import uuid
from pathlib import Path

import picows
import uvloop
from tests.server.harness import Server, running

EVENT_BYTES = 400


def raw_fdatasync(directory: Path, seconds: float) -> float:
    """4 KiB appended and synced at a time, as a log of single commits would at the least."""
    path = directory / "probe"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    block, written, started = b"x" * 4096, 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        os.pwrite(descriptor, block, written * 4096)
        os.fdatasync(descriptor)
        written += 1
    os.close(descriptor)
    path.unlink()
    return written / seconds


class Writer(picows.WSListener):
    """One connection in a closed loop."""

    def __init__(self, number: int, token: str, profile: str, batch: int) -> None:
        self.number = number
        self.token = token
        self.profile = profile
        self.batch = batch
        self.answered = 0
        self.latencies: list[float] = []
        self.running = True
        self.connected = asyncio.get_running_loop().create_future()
        self.sent_at = 0.0
        filler = "x" * (EVENT_BYTES - 120)
        self.partition = f"part-{number}"
        if profile == "canonical":
            event = {"type": "event", "payload": {"schema": "note.added", "data": {"text": filler}}}
        else:
            event = {
                "type": "set",
                "payload": {"target": "doc.title", "value": filler, "options": {"replace": True}},
            }
        self.event = json.dumps(event)

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        self.transport = transport
        self._send(
            "connect",
            json.dumps(
                {
                    "token": self.token,
                    "client_id": f"writer-{self.number}",
                    "supported_profiles": [self.profile],
                }
            ),
        )

    def _send(self, kind: str, payload: str) -> None:
        self.transport.send(
            picows.WSMsgType.TEXT,
            f'{{"type":"{kind}","msg_id":"m","timestamp":1,"protocol_version":"1.0","payload":{payload}}}'.encode(),
        )

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:  # noqa: ARG002
        text = frame.get_payload_as_bytes()
        if not self.connected.done():
            assert b'"connected"' in text, text
            self.connected.set_result(None)
            return
        assert b'"committed_id"' in text, text
        self.answered += self.batch
        self.latencies.append(time.perf_counter() - self.sent_at)
        if self.running:
            self.submit()

    def submit(self) -> None:
        items = ",".join(
            f'{{"id":"{uuid.uuid4()}","partitions":["{self.partition}"],"event":{self.event}}}'
            for _ in range(self.batch)
        )
        self.sent_at = time.perf_counter()
        self._send("submit_events", f'{{"events":[{items}]}}')


async def load(
    server: Server, connections: int, seconds: float, profile: str, batch: int
) -> tuple[float, float, float]:
    """Commits per second, and the median and 99th percentile of the time from submit to result in ms."""
    writers = [
        Writer(number, server.token(f"writer-{number}"), profile, batch) for number in range(connections)
    ]
    for writer in writers:
        await picows.ws_connect(lambda w=writer: w, server.url)
    await asyncio.gather(*(writer.connected for writer in writers))
    started = time.perf_counter()
    for writer in writers:
        writer.submit()
    await asyncio.sleep(seconds)
    for writer in writers:
        writer.running = False
    elapsed = time.perf_counter() - started
    total = sum(writer.answered for writer in writers)
    await asyncio.sleep(0.2)
    for writer in writers:
        writer.transport.disconnect()
    latencies = sorted(latency for writer in writers for latency in writer.latencies)
    return (
        total / elapsed,
        statistics.median(latencies) * 1000,
        latencies[int(len(latencies) * 0.99)] * 1000,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--profile", default="canonical", choices=["canonical", "compatibility"])
    chosen = parser.parse_args()
    rates, syncs, p50s, p99s = [], [], [], []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        directory = Path(folder)
        with running(directory / "data", "--model", "open", "--access-default", "allow") as server:
            for _ in range(chosen.rounds):
                syncs.append(raw_fdatasync(directory, 1.0))
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    rate, p50, p99 = runner.run(
                        load(server, chosen.connections, chosen.seconds, chosen.profile, chosen.batch)
                    )
                rates.append(rate)
                p50s.append(p50)
                p99s.append(p99)
            groups = server.metric("unisono_group_events_sum") / max(
                1, server.metric("unisono_group_events_count")
            )
    rate, sync = statistics.median(rates), statistics.median(syncs)
    print(
        f"{chosen.connections} connections, batches of {chosen.batch}, {chosen.profile}, {chosen.rounds} rounds"
    )
    print(f"  durable commits/s   {rate:10.0f}   (rounds: {' '.join(f'{r:.0f}' for r in rates)})")
    print(f"  raw fdatasync/s     {sync:10.0f}   (rounds: {' '.join(f'{r:.0f}' for r in syncs)})")
    print(f"  ratio               {rate / sync:10.2f}")
    print(
        f"  submit to result    {statistics.median(p50s):7.1f} ms median, {statistics.median(p99s):.1f} ms p99"
    )
    print(f"  events per group    {groups:10.1f}")


if __name__ == "__main__":
    main()
