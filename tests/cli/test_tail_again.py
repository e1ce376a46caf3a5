"""`unisono tail` over connections that end: nothing is missing, nothing is shown twice."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.behaviour.server.harness import Server, running, set_event
from tests.client.proxy import Proxy
from tests.commands import unisono
from tests.waiting import PATIENCE_S, until

SERVE = ("--access-default", "allow")


class Watching:
    """A running `unisono tail`, and what it has printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self.lines: list[str] = []
        self.notes: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(process.stdout, self.lines), daemon=True),
            threading.Thread(target=self._read, args=(process.stderr, self.notes), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe: IO[str], lines: list[str]) -> None:
        for line in pipe:
            lines.append(line)

    def close(self) -> None:
        for reader in self._readers:
            reader.join(PATIENCE_S)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    @property
    def ids(self) -> list[int]:
        found = (re.match(r" *(\d+)  ", line) for line in list(self.lines))
        return [int(each[1]) for each in found if each is not None]

    def expect(self, ids: list[int]) -> None:
        until(lambda: self.ids == ids, lambda: f"{self.ids} and not {ids}; {self.notes}")

    def expect_note(self, words: str) -> None:
        until(lambda: any(words in note for note in list(self.notes)), lambda: f"{self.notes}")


@contextmanager
def watching(url: str, token: str, *arguments: str) -> Iterator[Watching]:
    command = [sys.executable, "-u", "-m", "unisono", "tail", "--url", url, "--token", token, *arguments]
    process = subprocess.Popen(
        [*command, "--partition", "p"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    watcher = Watching(process)
    try:
        yield watcher
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        watcher.close()


def put(server: Server, count: int) -> None:
    with server.client("writer") as writer:
        for number in range(count):
            writer.commit(["p"], set_event("n", number))


def test_it_goes_on_after_the_server_was_killed(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", *SERVE).start()
    try:
        with Proxy(server.url) as proxy, watching(proxy.url, server.token("ann")) as watcher:
            put(server, 2)
            watcher.expect([1, 2])
            server.kill()
            watcher.expect_note("Error: ")
            server.start()
            proxy.aim(server.url)
            put(server, 2)
            watcher.expect([1, 2, 3, 4])
            watcher.expect_note("-- connected again --")
            put(server, 1)
            watcher.expect([1, 2, 3, 4, 5])
    finally:
        server.kill()


@pytest.mark.req("DUR-08")
def test_after_a_restore_it_begins_again(tmp_path: Path) -> None:
    with Proxy("ws://127.0.0.1:9/sync") as proxy, running(tmp_path / "first", *SERVE) as first:
        put(first, 1)
        target = str(tmp_path / "target")
        assert unisono("backup", target, "--data", str(first.data), "--quiet").exit_code == 0
        proxy.aim(first.url)
        put(first, 2)
        token = first.token("ann")
        with watching(proxy.url, token) as watcher:
            watcher.expect([1, 2, 3])
            first.kill()
            watcher.expect_note("Error: ")
            done = unisono("restore", "--from", target, "--data", str(tmp_path / "second"))
            assert done.exit_code == 0, done.output
            with running(tmp_path / "second", *SERVE) as second:
                put(second, 3)
                proxy.aim(second.url)
                watcher.expect_note("the log was restored")
                watcher.expect([1, 2, 3, 1, 2, 3, 4])


def test_what_another_try_does_not_help_ends_it(tmp_path: Path) -> None:
    with running(tmp_path / "data", *SERVE) as server, watching(server.url, server.token("ann")) as watcher:
        put(server, 1)
        watcher.expect([1])
        with server.client("ann"):  # takes the connection over
            assert watcher.process.wait(PATIENCE_S) == 1
        until(lambda: any("4003" in note for note in watcher.notes), lambda: f"{watcher.notes}")


def test_events_committed_while_history_is_read_are_shown(tmp_path: Path) -> None:
    """They come as broadcasts between two pages."""
    events = 2500
    with running(tmp_path / "data", *SERVE, "--model", "open") as server, server.client("writer") as writer:
        for start in range(0, events, 100):
            batch = [
                {"id": f"e{n}", "partitions": ["p"], "event": set_event("n", n)}
                for n in range(start, start + 100)
            ]
            writer.submit(*batch)
        stop = threading.Event()

        def go_on() -> None:
            while not stop.is_set():
                writer.commit(["p"], set_event("more", 1))

        worker = threading.Thread(target=go_on)
        worker.start()
        try:
            with watching(server.url, server.token("ann")) as watcher:
                until(lambda: "waiting for more" in "".join(watcher.lines), "the history does not end")
                here = len(watcher.ids)
                until(lambda: len(watcher.ids) > here + 20, "nothing comes after the history")
                seen = watcher.ids
        finally:
            stop.set()
            worker.join()
    assert seen == list(range(1, len(seen) + 1))


def test_colours_are_for_terminals(tmp_path: Path) -> None:
    with running(tmp_path / "data", *SERVE) as server:
        put(server, 1)
        command = [
            sys.executable,
            "-m",
            "unisono",
            "tail",
            "--url",
            server.url,
            "--token",
            server.token("ann"),
        ]

        def shown(**environment: str) -> bytes:
            leader, follower = pty.openpty()
            with os.fdopen(leader, "rb", buffering=0) as terminal:
                done = subprocess.Popen(
                    [*command, "--partition", "p", "--once"], stdout=follower, env=os.environ | environment
                )
                os.close(follower)
                done.wait(PATIENCE_S)
                return terminal.read(4096)

        assert b"\x1b[36mwriter" in shown()
        assert b"\x1b" not in shown(NO_COLOR="1")
        assert "\x1b" not in unisono(*command[3:], "--partition", "p", "--once").output
