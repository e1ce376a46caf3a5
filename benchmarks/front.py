"""What an event costs a front: CPU time of its process alone, from a client's frame to the answer.

    python -m benchmarks.front [--only single,batch,fan-out] [--beside ../other-checkout] [--rounds 3] [--seconds 2]
    python -m benchmarks.front --only single --profile

A real front serves the generators of this folder. In place of the authority a process commits at once whatever it is
sent, so nothing waits for a disk or is judged. With `--beside DIR` the front of another checkout (its `src`) is
measured in turn. CPU time of one process says little about what else the machine does; rates do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import gc
import importlib
import multiprocessing
import pstats
import re
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import ClassVar, Final

import uvloop

from benchmarks.comparison import works
from benchmarks.comparison.measure import Sample
from benchmarks.generators.order import Client, Wire, Work
from benchmarks.peers.system import HOST, ROOT, SECRET, System, signed
from unisono.config import Settings
from unisono.front.access import Access
from unisono.front.auth.sources import SharedSecret
from unisono.front.auth.verify import Verifier
from unisono.front.server import Front
from unisono.ipc.channel import Channel, ChannelClosed, socket_pair
from unisono.ipc.messages import (
    AskHead,
    BatchOutcome,
    Candidate,
    Claim,
    Claimed,
    EventCommitted,
    HeadAnswer,
    Message,
    Offer,
    Submit,
)
from unisono.ipc.page_messages import AskPage, PageResult
from unisono.node.processes import GC_THRESHOLDS

SUBSCRIBERS: Final = 200
WORKS: Final[dict[str, Callable[[System, float], Sample]]] = {
    "single": lambda system, seconds: works.submit(system, 50, 1, seconds),
    "batch": lambda system, seconds: works.submit(system, 10, 100, seconds),
    "fan-out": lambda system, seconds: works.fan_out(system, SUBSCRIBERS, seconds),
}
SERVE: Final = "serve"
EVENT: Final = (
    b'{"id":"%b","client_id":"%b","partitions":["%b"],"committed_id":%d,"event":%b,"status_updated_at":1}'
)
RESULT: Final = b'{"id":"%b","status":"committed","committed_id":%d,"status_updated_at":1}'


class FrontAlone(System):
    """A front process. `source` has the package `unisono`."""

    name = "front"
    wire: ClassVar[Wire] = "unisono"
    works: ClassVar[frozenset[Work]] = frozenset({"submit", "listen"})

    def __init__(self, source: Path, *, profile: bool = False) -> None:
        self._source = source
        self._profile = profile
        self._folder = Path()

    def missing(self) -> str | None:
        return None

    def version(self) -> str:
        return str(self._source)

    def start(self, folder: Path) -> None:
        self._folder = folder
        command = [sys.executable, "-m", "benchmarks.front", SERVE, *(["--profile"] if self._profile else [])]
        self._spawn(command, folder, {"PYTHONPATH": str(self._source)})
        self.port = int(self._first_line(folder))

    def cpu_s(self) -> float:
        assert self.process is not None
        nanoseconds = Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[0]
        return int(nanoseconds) / 1e9

    def said(self) -> str:
        """What it wrote on its way out."""
        return (self._folder / "server.log").read_text()

    def client(self, name: str, topics: Sequence[str]) -> Client:
        return Client(name, list(topics), signed(name))


class CommitsEverything:
    """The authority's and the reader's part: every event is committed at once, history is empty."""

    def __init__(self, authority: socket.socket, reader: socket.socket) -> None:
        self._authority, self._reader = Channel(authority), Channel(reader)
        self._head = 0

    def run(self) -> None:
        """Until the front ends."""
        self._authority.send([Offer(0, None, {"canonical": ("event",)})])
        try:
            while True:
                ready, _, _ = select.select([self._authority, self._reader], [], [])
                if self._reader in ready:
                    asked = [one for one in self._reader.receive() if isinstance(one, AskPage)]
                    self._reader.send([PageResult(one.ticket, b"", 0, one.since, False) for one in asked])
                if self._authority in ready and (answers := self._answers(self._authority.receive())):
                    self._authority.send(answers)
        except ChannelClosed:
            return

    def _answers(self, messages: Sequence[Message]) -> list[Message]:
        events: list[Message] = []
        outcomes: list[Message] = []
        for message in messages:
            match message:
                case Submit():
                    outcomes.append(self._commit(message, events))
                case Claim():
                    outcomes.append(Claimed(message.conn, self._head))
                case AskHead():
                    outcomes.append(HeadAnswer(message.ticket, self._head))
                case _:
                    pass
        return events + outcomes

    def _commit(self, submit: Submit, events: list[Message]) -> BatchOutcome:
        results: list[bytes] = []
        client = submit.client_id.encode()
        for item in submit.items:
            assert isinstance(item, Candidate)
            self._head += 1
            id, name = item.id.encode(), item.partitions[0].encode()
            payload = EVENT % (id, client, name, self._head, item.event)
            events.append(EventCommitted(self._head, submit.conn, item.partitions, payload))
            results.append(RESULT % (id, self._head))
        return BatchOutcome(submit.conn, b'{"results":[%b]}' % b",".join(results))


def serve(*, profile: bool) -> None:
    """Serve until SIGTERM; the port is printed."""
    authority, far_authority = socket_pair()
    reader, far_reader = socket_pair()
    node, _far_node = socket_pair()
    other = multiprocessing.get_context("fork").Process(
        target=lambda: CommitsEverything(far_authority, far_reader).run(), daemon=True
    )
    other.start()
    listening = socket.create_server((HOST, 0))
    listening.setblocking(False)
    settings = Settings(access_default="allow", heartbeat_timeout_s=3600.0, handshake_timeout_s=120.0)

    async def main() -> None:
        front = Front(0, settings, Verifier(SharedSecret(SECRET)), Access(None, "allow"))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, front.exit_code.set_result, 0)
        await front.start(authority=authority, reader=reader, node=node, listening=[listening])
        print(listening.getsockname()[1], flush=True)
        await front.exit_code
        await front.close()

    with contextlib.suppress(ImportError):  # an older tree has none
        importlib.import_module("unisono.node.heap").keep_freed_memory()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    if profile:
        profiler.disable()
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(40)
    other.terminate()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("serve", nargs="?", choices=[SERVE], help=argparse.SUPPRESS)
    parser.add_argument("--only", default=",".join(WORKS))
    parser.add_argument("--beside", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--profile", action="store_true", help="print where the time goes; rates are lower")
    chosen = parser.parse_args(arguments)
    if chosen.serve:
        serve(profile=chosen.profile)
        return 0
    fronts = {"this tree": FrontAlone(ROOT / "src", profile=chosen.profile)}
    if chosen.beside is not None:
        fronts[str(chosen.beside)] = FrontAlone(chosen.beside.resolve() / "src", profile=chosen.profile)
    keys = chosen.only.split(",")
    with tempfile.TemporaryDirectory(prefix="front-") as folder:
        for number, front in enumerate(fronts.values()):
            front.start(Path(folder) / str(number))
        try:
            for key in keys:
                print(f"{key:10}{'µs CPU/event':>14}{'events/s':>12}{'front cores':>13}")
                samples: dict[str, list[Sample]] = {name: [] for name in fronts}
                for _ in range(chosen.rounds):
                    for name, front in fronts.items():
                        samples[name].append(WORKS[key](front, chosen.seconds))
                for name, found in samples.items():
                    each = median(one.server_cores / one.rate * 1e6 for one in found)
                    rate, cores = (
                        median(getattr(one, what) for one in found) for what in ("rate", "server_cores")
                    )
                    print(f"  {name:8}{each:>14.2f}{rate:>12,.0f}{cores:>13.2f}", flush=True)
        finally:
            for front in fronts.values():
                front.stop()
                if chosen.profile:
                    print(re.sub(r"\S*/(?:site-packages|src)/", "", front.said()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
