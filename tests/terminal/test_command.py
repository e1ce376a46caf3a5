"""`unisono client` as a person starts it: what it says when it cannot start, and that it leaves cleanly."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest

from tests.behaviour.server.harness import Server
from tests.commands import unisono
from tests.waiting import PATIENCE_S
from unisono.cli.client import default_store

SHOW_CURSOR = "\x1b[?25h"
LEAVE_SCREEN = "\x1b[?1049l"


@pytest.fixture
def token(server: Server) -> str:
    return server.token("ann")


def refused(*arguments: str, **environment: str | None) -> str:
    """What it says instead of starting; never a traceback."""
    result = unisono("client", *arguments, env={"UNISONO_TOKEN": None, **environment})
    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit)
    return result.output


def test_what_is_missing_or_wrong_is_named(server: Server, token: str, tmp_path: Path) -> None:
    at = ("--url", server.url, "--partition", "p")
    assert "give --token, or set UNISONO_TOKEN" in refused(*at)
    assert "Missing option '--partition'" in refused("--token", token)
    assert "No such file" in refused(*at, "--token", f"@{tmp_path / 'none.jwt'}")
    (tmp_path / "empty.jwt").write_text("\n")
    assert "is empty" in refused(*at, "--token", f"@{tmp_path / 'empty.jwt'}")
    (tmp_path / "noise.jwt").write_bytes(b"\xff\xfe")
    assert "is not a text" in refused(*at, "--token", f"@{tmp_path / 'noise.jwt'}")
    assert "neither a token nor a file" in refused(*at, "--token", "opaque")
    unnamed = jwt.encode({"exp": 2**31}, "s" * 64, algorithm="HS256")
    assert "give --client-id" in refused(*at, "--token", unnamed)
    assert "belongs to 'ann', not to 'ben'" in refused(*at, "--token", token, "--client-id", "ben")
    long = ("--partition", "x" * 129, "--store", ":memory:")
    assert "at most 128" in refused(*long, "--token", token)
    assert "needs a terminal" in refused(*at, UNISONO_TOKEN=token)


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8040", "http://127.0.0.1:8040/sync", "ws://", "ws://host:port/sync", "ws://h:70000", ""],
)
def test_an_address_that_is_none_is_named(url: str, token: str) -> None:
    assert "is not an address like ws://" in refused("--url", url, "--token", token, "--partition", "p")


def test_every_server_client_and_partition_has_a_store_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    whose = [
        ("ws://a:1/sync", "ann", "p"),
        ("ws://b:1/sync", "ann", "p"),
        ("ws://a:1/sync", "Ann", "p"),
        ("ws://a:1/sync", "ann", "P"),
        ("ws://a:1/sync", "ann-p", "p"),
        ("ws://a:1/sync", "../ann", "."),
        ("ws://a:1/sync", "x" * 500, "日" * 40),
    ]
    paths = [default_store(*each) for each in whose]
    assert len({str(path).casefold() for path in paths}) == len(whose)
    assert {str(path.parent) for path in paths} == {"/somewhere/unisono/clients"}
    assert max(len(path.name) for path in paths) < 120
    assert paths[0].name.startswith("ann-p-")
    assert default_store("ws://A:1/elsewhere", "ann", "p") == paths[0]


class Process:
    """The command in a terminal of its own."""

    def __init__(self, server: Server, *arguments: str) -> None:
        self._screen, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.settings = termios.tcgetattr(theirs)
        self._theirs = theirs
        command = [sys.executable, "-c", "from unisono.cli.client import client; client()"]
        environment = os.environ | {"TERM": "xterm-256color", "UNISONO_TOKEN": server.token("ann")}
        self.process = subprocess.Popen(
            [*command, "--url", server.url, *arguments],
            stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True,
        )  # fmt: skip
        self.output = ""

    def until(self, words: str) -> None:
        """Wait until something was written since the last time."""
        end = time.monotonic() + PATIENCE_S
        while words not in self.output:
            assert time.monotonic() < end, f"{words!r} is to come, but:\n{self.output}"
            if select.select([self._screen], [], [], 0.1)[0]:
                self.output += os.read(self._screen, 65536).decode(errors="replace")
        self.output = self.output.split(words, 1)[1]

    def press(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def ends(self) -> int:
        """The exit code; the terminal is as it was before."""
        code = self.process.wait(PATIENCE_S)
        assert termios.tcgetattr(self._theirs) == self.settings
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._screen)
        os.close(self._theirs)


@contextlib.contextmanager
def process(server: Server, *arguments: str) -> Iterator[Process]:
    started = Process(server, *arguments)
    try:
        yield started
    finally:
        started.close()


def test_it_starts_edits_and_leaves_the_terminal_as_it_was(server: Server, part: str, tmp_path: Path) -> None:
    store = str(tmp_path / "deep" / "ann.db")
    with process(server, "--partition", part, "--store", store) as first:
        first.until("live")
        first.press("amilk\r")
        first.until("milk")
        with process(server, "--partition", part, "--store", store) as second:
            second.until("in use by another client")
            assert second.ends() == 1
        first.press("q")
        first.until(LEAVE_SCREEN)
        first.until(SHOW_CURSOR)
        assert first.ends() == 0
    with process(server, "--partition", part, "--store", store) as again:
        again.until("milk")
        again.process.send_signal(signal.SIGTERM)
        again.until(LEAVE_SCREEN)
        assert again.ends() == 0
