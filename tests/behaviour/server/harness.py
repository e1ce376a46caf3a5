"""A real server as a real process, and a client that speaks the protocol by hand over a real socket."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as ws_connect

from tests.forking import Forked
from tests.history.recorder import Recorder
from tests.waiting import PATIENCE_S, until
from unisono.front.auth.verify import sign_token

SECRET = b"a secret for tests that is long enough to sign with HS256 and more"
QUIET_S = 0.15
"""How long nothing must come for "nothing comes" to count; what would come follows an answer at once."""

PATIENT = (
    "--heartbeat-timeout-s", "600", "--handshake-timeout-s", "120",
    "--drain-timeout-s", "60", "--close-grace-s", "30",
)  # fmt: skip
"""Peers here send no heartbeats of their own, and a test may stand still: timers that it does not speak of wait."""

_uuid = count(1)


def new_id(prefix: str = "evt") -> str:
    """An event id that no other call gives."""
    return f"{prefix}-{os.getpid()}-{next(_uuid)}"


def tree_event(id: str, target: str = "explorer", **value: Any) -> dict[str, Any]:
    """A treePush that is valid once per id and partition."""
    return {"type": "treePush", "payload": {"target": target, "value": {"id": id, **value}}}


def set_event(target: str, value: Any, replace: bool = True) -> dict[str, Any]:
    return {"type": "set", "payload": {"target": target, "value": value, "options": {"replace": replace}}}


def item(
    partitions: Sequence[str], event: dict[str, Any], id: str | None = None, **more: Any
) -> dict[str, Any]:
    return {"id": id or new_id(), "partitions": list(partitions), "event": event, **more}


class Closed(Exception):
    """The server closed the socket; `code` says why."""

    def __init__(self, code: int | None, reason: str) -> None:
        super().__init__(f"closed with {code} {reason}")
        self.code = code
        self.reason = reason


class Peer:
    """One WebSocket. Messages come back in the order the server sent them."""

    def __init__(self, url: str, recorder: Recorder | None = None, **options: Any) -> None:
        self._recorder = recorder or Recorder()
        self._name = self._recorder.name()
        opening = ws_connect(
            url,
            open_timeout=PATIENCE_S,
            ping_interval=None,  # whoever does not read on purpose does not hear a pong either
            max_size=None,
            compression=None,
            proxy=None,
            **options,
        )
        self.socket: ClientConnection = opening.__enter__()
        self._numbers = count(1)

    def envelope(self, kind: str, payload: Any, **changes: Any) -> dict[str, Any]:
        message = {
            "type": kind,
            "msg_id": f"m{next(self._numbers)}",
            "timestamp": time.time_ns() // 1_000_000,
            "protocol_version": "1.0",
            "payload": payload,
        }
        return message | changes

    def send(self, kind: str, payload: Any, **changes: Any) -> None:
        self.raw(json.dumps(self.envelope(kind, payload, **changes)))

    def raw(self, data: str | bytes) -> None:
        """Whatever bytes (binary frame) or text (text frame) a test wants to try."""
        self._recorder.frame(self._name, "sent", data)
        self.socket.send(data)

    def receive(self, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """The next message; Closed when the server ended it; TimeoutError when nothing comes."""
        try:
            data = self.socket.recv(timeout=timeout_s)
        except ConnectionClosed as closed:
            frame = closed.rcvd
            self._recorder.closed(self._name)
            raise Closed(frame.code if frame else None, frame.reason if frame else "") from None
        self._recorder.frame(self._name, "received", data)
        message: dict[str, Any] = json.loads(data)
        assert set(message) == {"type", "msg_id", "timestamp", "protocol_version", "payload"}, message
        return message

    def expect(self, kind: str, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """The payload of the next message, which must be of this kind."""
        message = self.receive(timeout_s)
        assert message["type"] == kind, message
        payload: dict[str, Any] = message["payload"]
        return payload

    def expect_error(self, code: str) -> dict[str, Any]:
        payload = self.expect("error")
        assert payload["code"] == code, payload
        return payload

    def expect_close(self, code: int, timeout_s: float = PATIENCE_S) -> str:
        """Nothing more comes but the close, with this code; gives its reason."""
        with pytest.raises(Closed) as closed:
            raise AssertionError(f"expected a close, got {self.receive(timeout_s)}")
        assert closed.value.code == code, closed.value
        return closed.value.reason

    def expect_quiet(self, timeout_s: float = QUIET_S) -> None:
        try:
            message = self.receive(timeout_s)
        except TimeoutError:
            return
        raise AssertionError(f"expected nothing, got {message}")

    # -- the ordinary conversation -------------------------------------------------------------------------

    def send_connect(self, client_id: str, token: str, **more: Any) -> None:
        self._recorder.opened(self._name, client_id)
        self.send("connect", {"token": token, "client_id": client_id, **more})

    def connect(self, client_id: str, token: str, **more: Any) -> dict[str, Any]:
        self.send_connect(client_id, token, **more)
        return self.expect("connected")

    def submit(self, *items: dict[str, Any]) -> list[dict[str, Any]]:
        """Submit a batch and give its results; broadcasts must not come in between."""
        self.send("submit_events", {"events": list(items)})
        results: list[dict[str, Any]] = self.expect("submit_events_result")["results"]
        return results

    def commit(self, partitions: Sequence[str], event: dict[str, Any], id: str | None = None) -> int:
        """Submit one event that must be committed; its committed_id."""
        (result,) = self.submit(item(partitions, event, id))
        assert result["status"] == "committed", result
        committed_id: int = result["committed_id"]
        return committed_id

    def sync(self, partitions: Sequence[str], since: int = 0, **more: Any) -> dict[str, Any]:
        self.send("sync", {"partitions": list(partitions), "since_committed_id": since, **more})
        return self.expect("sync_response")

    def subscribe(self, *partitions: str) -> dict[str, Any]:
        return self.sync(partitions, subscription_partitions=list(partitions))

    def history(self, partitions: Sequence[str], since: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """Every page of one cycle, put together."""
        events: list[dict[str, Any]] = []
        while True:
            page = self.sync(partitions, since, limit=limit)
            events += page["events"]
            if not page["has_more"]:
                return events
            since = page["next_since_committed_id"]

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Server:
    """`unisono serve` on a data directory; ports are free ones. Extra arguments go to the command line.

    It is forked from a process that has imported it; only with `preexec_fn` is it started from nothing.
    """

    def __init__(self, data: Path, *arguments: str, **popen: Any) -> None:
        self.data = data
        data.mkdir(parents=True, exist_ok=True)
        self.secret_file = data.parent / f"{data.name}.secret"
        self.secret_file.write_bytes(SECRET)
        self.arguments = arguments
        self.popen = popen
        self.url = ""
        self.admin = ""
        self.process: subprocess.Popen[str] | Forked
        self.log = data.parent / f"{data.name}.log"
        self.recorder = Recorder()
        self.tampered = False
        """The test changes the log by itself: what clients saw need not be there in the end."""

    def serve_arguments(self) -> list[str]:
        """The arguments of `unisono`."""
        return [
            "serve", "--data", str(self.data), "--port", "0", "--admin-port", "0",
            "--jwt-secret-file", str(self.secret_file), *PATIENT, *self.arguments,
        ]  # fmt: skip

    def start(self) -> Server:
        command = self.serve_arguments()
        with self.log.open("a") as log:
            if "preexec_fn" in self.popen:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "unisono", *command],
                    stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True, **self.popen,
                )  # fmt: skip
            else:
                self.process = Forked(command, stderr=log.fileno(), **self.popen)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        match = re.fullmatch(r"unisono ready (ws://\S+) admin (http://\S+)\n", line)
        if match is None:
            self.kill()
            raise AssertionError(f"no ready line but {line!r}; log:\n{self.log.read_text()}")
        self.url, self.admin = match.groups()
        return self

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=PATIENCE_S)
        self._close_pipe()
        return code

    def kill(self) -> None:
        """kill -9 of every process of the server at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=PATIENCE_S)
        self._close_pipe()

    def _close_pipe(self) -> None:
        if self.process.stdout is not None:
            self.process.stdout.close()

    def children(self) -> dict[int, str]:
        """pid → state letter of the forked processes, oldest first (authority, reader, fronts)."""
        found: list[tuple[int, int, str]] = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, parent, *rest = stat.read_text().rpartition(")")[2].split()
                if int(parent) == self.process.pid:
                    started = int(
                        rest[17]
                    )  # where pids begin anew at 32768, the younger may have the smaller
                    found.append((started, int(stat.parent.name), state))
        return {pid: state for _, pid, state in sorted(found)}

    def token(self, client_id: str, *, ttl_s: float = 3600, **claims: Any) -> str:
        return sign_token(SECRET, client_id, ttl_s=ttl_s, now_s=time.time(), **claims)

    def peer(self, **options: Any) -> Peer:
        """A socket that has not connected yet."""
        return Peer(self.url, self.recorder, **options)

    def client(self, client_id: str, profile: str = "compatibility", **more: Any) -> Peer:
        """A connected client with full access by the server's default."""
        peer = self.peer()
        peer.connect(client_id, self.token(client_id), supported_profiles=[profile], **more)
        return peer

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.admin + path, timeout=PATIENCE_S) as answer:
            body: bytes = answer.read()
        return body.decode()

    def accepts(self) -> bool:
        """Whether anybody listens where clients come."""
        address = urlsplit(self.url)
        try:
            socket.create_connection((address.hostname, address.port), timeout=PATIENCE_S).close()
        except (
            ConnectionRefusedError,
            ConnectionResetError,
        ):  # reset: the listener closes at this very moment
            return False
        return True

    def is_ready(self) -> bool:
        """Whether every process answers, and the log is in reach."""
        try:
            return self.get("/readyz") == "ready\n"
        except urllib.error.HTTPError as refused:
            refused.close()
            return False

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric over all processes whose labels match."""
        total = 0.0
        for line in self._scrape().splitlines():
            match = re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line)
            if match and all(f'{key}="{value}"' in (match[1] or "") for key, value in labels.items()):
                total += float(match[2])
        return total

    def _scrape(self) -> str:
        """The counters of every process; one that does not answer for two seconds is left out, so ask again.

        A reader that has read nothing has nothing to say.
        """
        told = ""
        roles = ["authority", *(f"front {number}" for number in range(len(self.children()) - 2))]

        def complete() -> bool:
            nonlocal told
            told = self.get("/metrics")
            return all(f'process="{role}"' in told for role in roles)

        until(complete, f"not all of {roles} answer")
        return told


@contextlib.contextmanager
def running(data: Path, *arguments: str, **popen: Any) -> Iterator[Server]:
    """A server for one test, ended with it. What its peers saw is checked then."""
    server = Server(data, *arguments, **popen).start()
    try:
        yield server
    finally:
        server.kill()
    if not server.tampered:
        server.recorder.check(data)


@contextlib.contextmanager
def running_by_window(place: Path, *arguments: str) -> Iterator[Callable[[float], Server]]:
    """Servers with a timer, started when asked for: of so many seconds, which stand for `{}` in the arguments."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def started(window_s: float) -> Server:
            told = (word.format(window_s) for word in arguments)
            return stack.enter_context(running(place / f"data-{window_s}", *told))

        yield started
