"""A load of writers in a closed loop, and the limit of the disk that it is measured beside."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec
import picows
import uvloop
from tests.behaviour.server.harness import Server

EVENT_BYTES = 400


class Round(msgspec.Struct, frozen=True):
    """What one measurement found: durable commits per second, and the time from submit to result in milliseconds."""

    rate: float
    p50: float
    p99: float


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


def load(servers: Sequence[Server], connections: int, seconds: float, profile: str, batch: int) -> Round:
    """The connections in turn to the servers, each as a client of its own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_load(servers, connections, seconds, profile, batch))


async def _load(
    servers: Sequence[Server], connections: int, seconds: float, profile: str, batch: int
) -> Round:
    writers: list[Writer] = []
    for number in range(connections):
        server = servers[number % len(servers)]
        writer = Writer(number, server.token(f"writer-{number}"), profile, batch)
        await picows.ws_connect(lambda w=writer: w, server.url)
        writers.append(writer)
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
    latencies = sorted(latency * 1000 for writer in writers for latency in writer.latencies)
    return Round(total / elapsed, statistics.median(latencies), latencies[int(len(latencies) * 0.99)])


def group_size(servers: Sequence[Server]) -> float:
    """Events that were made durable together, on average."""
    events = sum(server.metric("unisono_group_events_sum") for server in servers)
    return events / max(1.0, sum(server.metric("unisono_group_events_count") for server in servers))
