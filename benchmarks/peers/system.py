"""A server that can be measured: started durable on loopback, loaded by generators, stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from benchmarks.generators.order import Client, Wire, Work
from unisono.front.auth.verify import sign_token

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
SECRET = b"a secret for benchmarks, long enough to sign tokens by HS256"
GENERATOR = [sys.executable, "-m", "benchmarks.generators"]
START_S = 30.0
STOP_S = 30.0
HOST = "127.0.0.1"


class NotStarted(Exception):
    """The server did not come up; the text has the end of its log."""


class System(ABC):
    """One server. `works`: what it can be asked for. Stopped, its folder may be removed."""

    name: ClassVar[str]
    wire: ClassVar[Wire]
    works: ClassVar[frozenset[Work]]
    port: int
    process: subprocess.Popen[str] | None = None

    @abstractmethod
    def missing(self) -> str | None:
        """Why it cannot be started here: what is not installed. None when it can."""

    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def start(self, folder: Path) -> None:
        """Start it with its data in an empty folder; it accepts connections when this returns."""

    def stop(self) -> None:
        """End it, by force if it does not end by itself."""
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def client(self, name: str, topics: Sequence[str]) -> Client:
        return Client(name, list(topics))

    def whole(self, topic: str) -> list[str]:
        """The topics to name for reading the large topic as fast as it can."""
        return [topic]

    def generator(self, work: Work) -> list[str]:  # noqa: ARG002
        """The command of a generator for this work."""
        return GENERATOR

    def cpu_s(self) -> float:
        """CPU time of its processes so far."""
        assert self.process is not None
        return sum(cpu_s(pid) for pid in tree(self.process.pid))

    def memory_bytes(self) -> int:
        """Memory of its processes; what they share counts once."""
        assert self.process is not None
        return sum(_proportional_bytes(pid) for pid in tree(self.process.pid))

    def _spawn(self, command: Sequence[str], folder: Path, env: dict[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "server.log").open("w") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
                start_new_session=True, cwd=ROOT, env=os.environ | (env or {}),
            )  # fmt: skip

    def _first_line(self, folder: Path) -> str:
        """What it prints when it is ready."""
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.stop()
            raise NotStarted(f"{self.name}: {(folder / 'server.log').read_text()[-2000:]}")
        return line

    def _until_listening(self, folder: Path) -> None:
        assert self.process is not None
        end = time.monotonic() + START_S
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError):
                socket.create_connection((HOST, self.port), 1).close()
                return
            time.sleep(0.05)
        self.stop()
        raise NotStarted(f"{self.name}: {(folder / 'server.log').read_text()[-2000:]}")


def signed(name: str) -> str:
    """A token of one day for a client."""
    return sign_token(SECRET, name, ttl_s=86_400, now_s=time.time())


def free_port() -> int:
    with socket.create_server((HOST, 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def tree(root: int) -> list[int]:
    """A process and all below it."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def cpu_s(pid: int) -> float:
    """CPU time of a process so far; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
