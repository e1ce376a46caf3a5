"""Terminals for the examples: shells that stay open from block to block, on ports of their own."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

from tests.docs.blocks import Step, pattern
from tests.ports import free_port

PATIENCE_S: Final = 200.0
"""A step may start Spark, which takes its time on a machine that does other things, too."""

SAID: Final = ("127.0.0.1:8040", "127.0.0.1:8041")
"""The addresses that examples speak of."""

ENVIRONMENT: Final = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("UNISONO_", "PYTEST_")) and not name.lower().endswith("_proxy")
}
"""Settings of whoever runs the tests, and proxies, must not come between an example and its server. Read once: pages
are played in threads, while pytest changes the environment for each test."""

_DONE: Final = "--- done ---"
_SAYS_NO_URL = re.compile(r"unisono (?:tail|submit|bench)\b(?!.*--url)")


class Ports:
    """The ports a page's server really has, and texts with one kind put for the other."""

    def __init__(self) -> None:
        self.numbers = (str(free_port()), str(free_port()))
        self._real = tuple(f"127.0.0.1:{number}" for number in self.numbers)

    def put_in(self, text: str) -> str:
        """What a page says, as it is to be run here."""
        if _SAYS_NO_URL.search(text):
            text = re.sub(r"unisono (tail|submit|bench)\b", rf"unisono \1 --url ws://{SAID[0]}/sync", text)
        return text.replace(SAID[0], self._real[0]).replace(SAID[1], self._real[1])

    def taken_out(self, text: str) -> str:
        """What was printed here, as a page says it."""
        return text.replace(self._real[0], SAID[0]).replace(self._real[1], SAID[1])


class Terminal:
    """One shell. What it prints, errors included, is kept until a step has accounted for it."""

    def __init__(self, where: Path, ports: Ports) -> None:
        self._ports = ports
        executables = str(Path(sys.executable).parent)
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=where,
            start_new_session=True,
            env=ENVIRONMENT
            | {
                "PATH": f"{executables}:{ENVIRONMENT['PATH']}",
                "UNISONO_PORT": ports.numbers[0],
                "UNISONO_ADMIN_PORT": ports.numbers[1],
            },
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._pending = ""
        self._running = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def play(self, step: Step, *, to_the_end: bool) -> None:
        """Do what the step says and see that it prints what the step says."""
        if step.command is not None:
            self._wait_idle()
            self._type(step.command)
        wanted = pattern(step.output)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            if to_the_end and not self._running:
                assert wanted.fullmatch(self._pending), self._differs(step)
                self._pending = ""
                return
            match = None if to_the_end else wanted.match(self._pending)
            if match is not None:
                self._pending = self._pending[match.end() :]
                return
            assert self._take(deadline), self._differs(step)

    def close(self) -> None:
        """End the shell and everything it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait()
        self._reader.join()
        for pipe in (self._shell.stdin, self._shell.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _type(self, command: str) -> None:
        assert self._shell.stdin is not None
        self._running += 1
        # The command must not read what is meant for the shell; its exit code must be there for the next one.
        self._shell.stdin.write(
            f"{{ {self._ports.put_in(command)}\n}} </dev/null\n__code=$?; echo; echo '{_DONE}'; (exit $__code)\n"
        )
        self._shell.stdin.flush()

    def _wait_idle(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self._running:
            assert self._take(deadline), f"the command before still runs; it printed:\n{self._pending}"
        self._pending = ""

    def _take(self, deadline: float) -> bool:
        """One line more, or False when none comes in time."""
        try:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return False
        if line.strip() == _DONE:
            self._running -= 1
        elif line.strip():
            self._pending += self._ports.taken_out(line)
        return True

    def _read(self) -> None:
        assert self._shell.stdout is not None
        for line in self._shell.stdout:
            self._lines.put(line)

    def _differs(self, step: Step) -> str:
        wanted = "\n".join(step.output)
        return f"{step.command or '(running)'}\nis said to print\n{wanted}\nand printed\n{self._pending}"
