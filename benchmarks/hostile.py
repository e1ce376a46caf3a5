"""What one hostile client costs everybody else: heartbeat and commit latency of a bystander, memory of the server.

Four attacks, each on a fresh server with default limits:

    names      a sync naming one partition of 64 KiB of unordered combining marks
    event      one event of nearly 1 MiB, 350,000 small values, in 64 partitions
    fragments  upgrade, 1 MiB of an unfinished message, close: 1,000 times, never authenticated
    queue      connect, submit 1 MiB, close, 80 times, with `max_queue_bytes` at 8 MiB

A bystander in a process of its own sends a heartbeat and a small submit in turn. Shown are the median and the worst
of its latencies, how long the attack lasted, and the memory of all server processes before it, at its peak and after
it. The queue is filled while the authority is stopped, so there the worst commit is as long as the attack. With
`--beside DIR` the server of another checkout (its `src`) is measured too, in turn, in the same run.

    python -m benchmarks.hostile [names event fragments queue] [--rounds 3] [--beside ../older-checkout]
"""

from __future__ import annotations

import argparse
import base64
import json
import multiprocessing
import os
import socket
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from tests.behaviour.server.harness import Closed, Peer, Server, item, new_id, running, set_event, tree_event
from websockets.exceptions import ConnectionClosed

MIB = 1024 * 1024
PATIENCE_S = 600.0
"""How long an attacker waits for its answer, and a bystander for its own."""

SETTLE_S = 3.0
"""After an attack, before its memory counts as kept."""


class Measured(msgspec.Struct, frozen=True):
    """One attack on one server; times in milliseconds, memory in MiB."""

    heartbeat_p50: float
    heartbeat_max: float
    commit_p50: float
    commit_max: float
    attack_s: float
    before: float
    peak: float
    after: float
    answer: str


def resident_mib(server: Server) -> float:
    """Anonymous memory of all processes of a server."""
    total = 0
    for pid in (server.process.pid, *server.children()):
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Anonymous:"):
                    total += int(line.split()[1])
    return total / 1024


class Peak(threading.Thread):
    """The largest memory seen until stopped."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._over = threading.Event()
        self.mib = 0.0

    def run(self) -> None:
        while not self._over.wait(0.1):
            self.mib = max(self.mib, resident_mib(self._server))

    def stop(self) -> float:
        self._over.set()
        self.join()
        return self.mib


def bystand(url: str, token: str, pipe: Connection) -> None:
    """Heartbeat, submit, and again, until told to stop; then the latencies."""
    heartbeats: list[float] = []
    commits: list[float] = []
    with Peer(url) as peer:
        peer.connect("bystander", token, supported_profiles=["compatibility"])
        pipe.send("ready")
        while not pipe.poll():
            started = time.perf_counter()
            peer.send("heartbeat", {})
            peer.expect("heartbeat_ack", PATIENCE_S)
            heartbeats.append(time.perf_counter() - started)
            started = time.perf_counter()
            peer.send("submit_events", {"events": [item(["bystander"], set_event("n", 1))]})
            peer.expect("submit_events_result", PATIENCE_S)
            commits.append(time.perf_counter() - started)
            time.sleep(0.001)
    pipe.send((heartbeats, commits))


def names(server: Server) -> str:
    name = "a" + "\u0315\u0316" * (16 * 1024)  # two combining classes in turn, 4 bytes a pair
    with server.client("attacker") as peer:
        peer.send("sync", {"partitions": [name], "since_committed_id": 0})
        return str(peer.receive(PATIENCE_S)["payload"].get("code"))


def event(server: Server) -> str:
    big = [[] for _ in range(345_000)]  # type: ignore[var-annotated]
    partitions = [f"p{number}" for number in range(64)]
    message = {"events": [item(partitions, set_event("big", big))]}
    text = json.dumps(message, separators=(",", ":"))
    envelope = '{"type":"submit_events","msg_id":"m","timestamp":1,"protocol_version":"1.0","payload":%s}'
    with server.client("attacker") as peer:
        peer.raw(envelope % text)
        answer = peer.receive(PATIENCE_S)["payload"]
        results = answer.get("results") or [{"reason": answer.get("code")}]
        return str(results[0].get("reason", "committed"))


def fragments(server: Server) -> str:
    address = urlsplit(server.url)
    assert address.hostname is not None
    assert address.port is not None
    key = base64.b64encode(os.urandom(16)).decode()
    request = (
        f"GET {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()
    size = MIB - 1024
    frame = struct.pack("!BBQ4x", 0x01, 0xFF, size) + b"x" * size
    for _ in range(1000):
        with socket.create_connection((address.hostname, address.port)) as sock, suppress(OSError):
            sock.sendall(request)
            sock.recv(4096)
            sock.sendall(frame)
    return "closed"


def queue(server: Server) -> str:
    """Stop the authority, so that nothing is taken from the queue, and see how much is let in."""
    authority = next(iter(server.children()))
    accepted = 0
    os.kill(authority, 19)
    try:
        peers = []
        for number in range(80):
            peer, client = server.peer(), f"c{number}"
            proof = {"client_id": client, "token": server.token(client)}
            peer.send("connect", proof | {"supported_profiles": ["compatibility"]})
            peers.append(peer)
        os.kill(authority, 18)
        for peer in peers:
            peer.expect("connected", PATIENCE_S)
        os.kill(authority, 19)
        value = "x" * (MIB - 1024)
        for number, peer in enumerate(peers):
            with suppress(ConnectionClosed, Closed):
                peer.send(
                    "submit_events", {"events": [item([f"q{number}"], tree_event(new_id(), text=value))]}
                )
                peer.send("heartbeat", {})
                accepted += peer.receive(PATIENCE_S)["type"] == "heartbeat_ack"
            peer.close()
    finally:
        os.kill(authority, 18)
    return f"{accepted} MiB"


ATTACKS: dict[str, tuple[Callable[[Server], str], tuple[str, ...]]] = {
    "names": (names, ()),
    "event": (event, ()),
    "fragments": (fragments, ()),
    "queue": (queue, ("--max-queue-bytes", str(8 * MIB))),
}


def measure(attack: Callable[[Server], str], options: tuple[str, ...], source: Path) -> Measured:
    environment = {**os.environ, "PYTHONPATH": str(source)}
    arguments = ("--access-default", "allow", "--log-level", "error", *options)
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder) / "data", *arguments, env=environment) as server,
    ):
        here, there = multiprocessing.get_context("spawn").Pipe()
        bystander = multiprocessing.get_context("spawn").Process(
            target=bystand, args=(server.url, server.token("bystander"), there)
        )
        bystander.start()
        here.recv()
        time.sleep(1.0)
        before, peak = resident_mib(server), Peak(server)
        peak.start()
        started = time.perf_counter()
        answer = attack(server)
        took = time.perf_counter() - started
        time.sleep(SETTLE_S)
        here.send("stop")
        heartbeats, commits = here.recv()
        bystander.join()
        return Measured(
            heartbeat_p50=statistics.median(heartbeats) * 1000,
            heartbeat_max=max(heartbeats) * 1000,
            commit_p50=statistics.median(commits) * 1000,
            commit_max=max(commits) * 1000,
            attack_s=took,
            before=before,
            peak=peak.stop(),
            after=resident_mib(server),
            answer=answer,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=", ".join(ATTACKS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", type=Path, help="another checkout")
    chosen = parser.parse_args()
    sources = {"here": Path(__file__).resolve().parent.parent / "src"}
    if chosen.beside is not None:
        sources = {"beside": chosen.beside.resolve() / "src", **sources}
    print(
        f"{'attack':11}{'server':8}{'heartbeat p50':>14}{'max':>9}{'commit p50':>12}{'max':>9}"
        f"{'attack s':>10}{'MiB before':>12}{'peak':>7}{'after':>7}   answer"
    )
    for name in chosen.attacks or ATTACKS:
        attack, options = ATTACKS[name]
        found: dict[str, list[Measured]] = {where: [] for where in sources}
        for _ in range(chosen.rounds):
            for where, source in sources.items():
                found[where].append(measure(attack, options, source))
        for where, rounds in found.items():

            def median(field: str, rounds: list[Measured] = rounds) -> float:
                return float(statistics.median(getattr(one, field) for one in rounds))

            print(
                f"{name:11}{where:8}{median('heartbeat_p50'):11.1f} ms{median('heartbeat_max'):9.0f}"
                f"{median('commit_p50'):9.1f} ms{median('commit_max'):9.0f}{median('attack_s'):10.1f}"
                f"{median('before'):12.0f}{median('peak'):7.0f}{median('after'):7.0f}   {rounds[-1].answer}",
                flush=True,
            )


if __name__ == "__main__":
    main()
