"""Presence in one partition: 200 clients that move a cursor ten times a second, and what it costs the server.

python -m benchmarks.presence [clients] [seconds]
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

import picows
import uvloop
from tests.behaviour.server.harness import Server, running

PER_S = 10.0


class Mover(picows.WSListener):
    """One client: says where it is, and counts what it hears of the others."""

    def __init__(self, number: int, token: str) -> None:
        self.number = number
        self.token = token
        self.messages = self.values = 0
        self.ready = asyncio.get_running_loop().create_future()
        self.transport: picows.WSTransport

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        self.transport = transport
        self.say("connect", {
            "token": self.token, "client_id": f"c{self.number}", "extensions": ["presence"],
            "supported_profiles": ["compatibility"],
        })  # fmt: skip

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:  # noqa: ARG002
        message = json.loads(frame.get_payload_as_bytes())
        if message["type"] == "connected":
            self.say("sync", {
                "partitions": ["p"], "subscription_partitions": ["p"], "since_committed_id": 0,
            })  # fmt: skip
        elif message["type"] == "sync_response":
            self.ready.set_result(None)
        elif message["type"] == "presence_update":
            self.messages += 1
            self.values += len(message["payload"]["present"])
        elif message["type"] == "error":
            raise SystemExit(message["payload"])

    def say(self, kind: str, payload: dict[str, object]) -> None:
        message = {"type": kind, "msg_id": "m", "timestamp": 1, "protocol_version": "1.0", "payload": payload}
        self.transport.send(picows.WSMsgType.TEXT, json.dumps(message).encode())


async def move(server: Server, clients: int, seconds: float) -> None:
    movers = [Mover(number, server.token(f"c{number}")) for number in range(clients)]
    for mover in movers:
        await picows.ws_connect(lambda mover=mover: mover, server.url)
    await asyncio.gather(*(mover.ready for mover in movers))
    before, started, place = cpu_s(server), time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        place += 1
        for mover in movers:
            mover.say(
                "presence", {"partition": "p", "value": {"x": place, "y": mover.number, "name": "somebody"}}
            )
        await asyncio.sleep(max(0.0, started + place / PER_S - time.perf_counter()))
    took = time.perf_counter() - started
    used = cpu_s(server) - before
    sent, messages, values = place * clients, sum(m.messages for m in movers), sum(m.values for m in movers)
    print(
        f"{clients} clients, {sent / took:,.0f} values/s said: {values / took:,.0f} values/s delivered in "
        f"{messages / took:,.0f} messages/s; server CPU {used / took * 100:.0f} % of one core"
    )


def cpu_s(server: Server) -> float:
    """Of all processes of the server."""
    ticks = 0
    for pid in (server.process.pid, *server.children()):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / 100


def main(clients: int = 200, seconds: float = 10.0) -> None:
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "data"
        with running(data, "--model", "open", "--access-default", "allow") as server:
            uvloop.run(move(server, clients, seconds))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
