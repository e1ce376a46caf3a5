"""Unisono itself: this tree, or another revision of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from benchmarks.generators.order import Client, Wire, Work
from benchmarks.peers.system import HOST, ROOT, SECRET, NotStarted, System, signed

JUDGING_MODEL = ROOT / "benchmarks" / "model"


class Unisono(System):
    """`unisono serve` with one front, on SQLite. `source` has the package `unisono`."""

    name = "Unisono"
    wire: ClassVar[Wire] = "unisono"
    works: ClassVar[frozenset[Work]] = frozenset({"submit", "read", "listen", "connect", "hold"})

    def __init__(self, *, judging: bool = False, source: Path = ROOT / "src") -> None:
        self._model = str(JUDGING_MODEL) if judging else "open"
        self._source = source

    def missing(self) -> str | None:
        return None

    def version(self) -> str:
        asked = ["git", "-C", str(self._source), "describe", "--always", "--dirty"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False)
        return answer.stdout.strip() or "unknown revision"

    def start(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        secret = folder / "secret"
        secret.write_bytes(SECRET)
        env = {"PYTHONPATH": str(self._source)}
        self._require_source(env)
        command = [
            sys.executable, "-m", "unisono", "serve", "--data", str(folder / "data"),
            "--port", "0", "--admin-port", "0", "--jwt-secret-file", str(secret),
            "--model", self._model, "--access-default", "allow", "--log-level", "warning",
            "--heartbeat-timeout-s", "3600", "--handshake-timeout-s", "120",
        ]  # fmt: skip
        self._spawn(command, folder, env)
        line = self._first_line(folder)
        match = re.match(rf"unisono ready ws://{HOST}:(\d+)/", line)
        if match is None:
            self.stop()
            raise NotStarted(f"not a ready line: {line!r}")
        self.port = int(match[1])

    def _require_source(self, env: dict[str, str]) -> None:
        """An installed package must not stand before the tree that is to be measured."""
        asked = [sys.executable, "-c", "import unisono; print(unisono.__file__)"]
        found = subprocess.run(
            asked, capture_output=True, text=True, env=os.environ | env, check=True
        ).stdout.strip()
        if not Path(found).is_relative_to(self._source):
            raise NotStarted(f"the server would run {found}, not {self._source}")

    def client(self, name: str, topics: Sequence[str]) -> Client:
        return Client(name, list(topics), signed(name))
