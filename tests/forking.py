"""The command `unisono` as a process of its own that starts at once: forked from one that has imported it.

Importing takes most of a second of processor time, and the tests start hundreds of servers. What runs is what
`python -m unisono` runs, in a session of its own, with the environment and directory of the caller; it ends as any
Python process ends. The examples of the documentation and `tests/cli` start real ones.

    test process ── request, descriptors ──► template ── fork ──► keeper ── fork ──► unisono serve …
                 ◄── pid, then exit code ──────────────────────────┘
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from itertools import count
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryFile
from typing import IO

import msgspec

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[1]
REQUEST_BYTES_MAX = 1 << 18
TEMPLATES = 2
"""Taken in turn. Each has its own seed of hashes: neighbours, and lives of one server, must not depend on theirs."""

IMPORTED = (
    "unisono.cli.serve", "unisono.cli.model", "unisono.reader.process", "unisono.store.postgres.log",
)  # fmt: skip

_turns = count()


class Request(msgspec.Struct, frozen=True):
    """What is to run. With it come descriptors: where to tell of it, its standard output and error, its input."""

    arguments: list[str]
    directory: str
    environment: dict[str, str]


class Forked:
    """What tests use of `subprocess.Popen`, for a forked `unisono`."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.args = ["unisono", *arguments]
        self.returncode: int | None = None
        self.stdout: IO[str] | None = None
        out = stdout
        if out is None:
            reading, out = os.pipe()
            self.stdout = os.fdopen(reading, encoding="utf-8")
        status, telling = os.pipe()
        self._status = os.fdopen(status)
        environment = dict(os.environ if env is None else env)
        request = Request(list(arguments), str(Path.cwd()), environment)
        descriptors = [telling, out, stderr, *([] if stdin is None else [stdin])]
        template = _template(next(_turns) % TEMPLATES)
        socket.send_fds(template, [msgspec.json.encode(request)], descriptors)
        os.close(telling)
        if stdout is None:
            os.close(out)
        self.pid = int(self._status.readline())

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    *arguments: str | Path, stdin: str = "", env: Mapping[str, str] | None = None
) -> CompletedProcess[str]:
    """Run the command `unisono` to its end, as `subprocess.run` does."""
    with ExitStack() as stack:
        given, out, err = (stack.enter_context(TemporaryFile("w+", encoding="utf-8")) for _ in range(3))
        given.write(stdin)
        given.seek(0)
        process = Forked(
            [str(argument) for argument in arguments],
            stdin=given.fileno(), stdout=out.fileno(), stderr=err.fileno(), env=env,
        )  # fmt: skip
        try:
            code = process.wait(PATIENCE_S)
        finally:
            process.kill()
        for file in (out, err):
            file.seek(0)
        return CompletedProcess(process.args, code, out.read(), err.read())


@cache
def _template(number: int) -> socket.socket:
    """Where a template takes requests; it ends with this process."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(there.fileno())],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"},
            stdin=subprocess.DEVNULL,
            pass_fds=[there.fileno()],
            start_new_session=True,
        )
    owner = os.getpid()

    def end() -> None:
        if os.getpid() == owner:  # not in a forked child
            here.close()
            process.wait()

    atexit.register(end)
    return here


def _serve_requests(requests: socket.socket) -> None:
    """Fork for each request; returns in the forked process, which has become what was asked for."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 4)
        if not message:
            os._exit(0)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork():
            for descriptor in descriptors:
                os.close(descriptor)
            continue
        requests.close()
        telling, *standard = descriptors
        pid = os.fork()
        if pid:
            for descriptor in standard:
                os.close(descriptor)
            _keep(pid, telling)
        os.close(telling)
        _become(msgspec.json.decode(message, type=Request), standard)
        return


def _keep(pid: int, telling: int) -> None:
    """Tell the pid, and how it ended."""
    with suppress(BrokenPipeError):
        os.write(telling, b"%d\n" % pid)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(telling, b"%d\n" % code)
    os._exit(0)


def _become(request: Request, standard: Sequence[int]) -> None:
    os.setsid()
    for descriptor, number in zip(standard, (1, 2, 0), strict=False):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)
    time.tzset()
    sys.argv = [str(Path(sys.executable).with_name("unisono")), *request.arguments]


def main() -> None:
    import importlib

    from unisono.cli.main import main as unisono

    for name in IMPORTED:
        importlib.import_module(name)
    _serve_requests(socket.socket(fileno=int(sys.argv[1])))
    unisono()


if __name__ == "__main__":
    main()
