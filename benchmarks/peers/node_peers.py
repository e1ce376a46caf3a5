"""Peers that run on Node.js: packages from `package.json`, each server in a small script beside it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

from benchmarks.generators.order import Client, Wire, Work
from benchmarks.peers.system import HERE, SECRET, System, signed

STREAMS_MAX: Final = 64
"""Durable Streams has a pool of 100 open files, and fails an append whose file has left it meanwhile."""

_NUMBERED: Final = re.compile(r"-(\d+)$")


class NodeSystem(System):
    """Its script gets the data folder and prints the port when it listens."""

    script: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]

    def missing(self) -> str | None:
        if shutil.which("node") is None:
            return "node is not installed"
        lacking = [name for name in self.packages if not self._manifest(name).exists()]
        return f"not in node_modules: {', '.join(lacking)}" if lacking else None

    def version(self) -> str:
        found: str = json.loads(self._manifest(self.packages[0]).read_text())["version"]
        return found

    def _manifest(self, package: str) -> Path:
        return HERE / "node_modules" / package / "package.json"

    def start(self, folder: Path) -> None:
        command = ["node", str(HERE / self.script), str(folder)]
        self._spawn(command, folder, {"BENCH_SECRET": SECRET.decode(), "NODE_ENV": "production"})
        self.port = int(self._first_line(folder))


class Insieme(NodeSystem):
    """The JavaScript reference, on SQLite with `synchronous=FULL`. A topic is a project."""

    name = "JavaScript reference"
    wire: ClassVar[Wire] = "insieme"
    works: ClassVar[frozenset[Work]] = frozenset({"submit", "read", "listen", "connect", "hold"})
    script = "insieme-server.mjs"
    packages = ("insieme", "better-sqlite3", "ws")

    def client(self, name: str, topics: Sequence[str]) -> Client:
        return Client(name, list(topics), signed(name))


class Hocuspocus(NodeSystem):
    """Yjs documents kept in memory: measured for fan-out alone, because nothing of it is durable."""

    name = "Hocuspocus"
    wire: ClassVar[Wire] = "hocuspocus"
    works: ClassVar[frozenset[Work]] = frozenset({"listen"})
    script = "hocuspocus-server.mjs"
    packages = ("@hocuspocus/server", "yjs")


class DurableStreams(NodeSystem):
    """A file for each stream, synced on each append. A topic is a stream: there is no order across them."""

    name = "Durable Streams"
    wire: ClassVar[Wire] = "streams"
    works: ClassVar[frozenset[Work]] = frozenset({"submit", "read"})
    script = "streams-server.mjs"
    packages = ("@durable-streams/server",)

    def client(self, name: str, topics: Sequence[str]) -> Client:
        """Connections beyond the largest number of streams share them."""
        return Client(
            name, [_NUMBERED.sub(lambda one: f"-{int(one[1]) % STREAMS_MAX}", topic) for topic in topics]
        )
