"""Servers that follow the protocol and are not ours, told what to do line by line."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from tests.waiting import PATIENCE_S


class Line:
    """One connection, seen from the server."""

    def __init__(self, socket: ServerConnection, log: list[dict[str, Any]]) -> None:
        self.socket = socket
        self.log = log
        self._sent = 0

    def receive(self, timeout: float = PATIENCE_S) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.socket.recv(timeout=timeout))
        self.log.append(message)
        return message

    def expect(self, kind: str) -> dict[str, Any]:
        """The payload of the next message but heartbeats, which are answered."""
        while True:
            message = self.receive()
            if message["type"] == "heartbeat":
                self.say("heartbeat_ack", {})
                continue
            assert message["type"] == kind, message
            payload: dict[str, Any] = message["payload"]
            return payload

    def say(self, kind: str, payload: dict[str, Any], **more: Any) -> None:
        self._sent += 1
        self.socket.send(
            json.dumps(
                {
                    "type": kind,
                    "msg_id": f"x{self._sent}",
                    "timestamp": time.time_ns() // 1_000_000,
                    "protocol_version": "1.0",
                    "payload": payload,
                    **more,
                }
            )
        )

    # -- the ordinary conversation ---------------------------------------------------------------------------

    def welcome(self, *, head: int = 0, ordered: bool = False, **more: Any) -> dict[str, Any]:
        """Accept a connect; gives what it said."""
        told = self.expect("connect")
        capabilities: dict[str, Any] = {
            "profile": "compatibility", "accepted_event_types": ["set"], "tree_policy": "strict"
        }  # fmt: skip
        if ordered:
            capabilities["ordered_delivery"] = True
        self.say("connected", {
            "client_id": told["client_id"], "server_time": 1, "server_last_committed_id": head,
            "capabilities": capabilities, **more,
        })  # fmt: skip
        return told

    def page(self, *events: dict[str, Any], to: int, more: bool = False) -> None:
        self.say("sync_response", {
            "partitions": ["p"], "effective_subscriptions": ["p"], "events": list(events),
            "next_since_committed_id": events[-1]["committed_id"] if more else to,
            "sync_to_committed_id": to, "has_more": more,
        })  # fmt: skip

    def broadcast(self, committed_id: int, **more: Any) -> None:
        self.say("event_broadcast", event(committed_id) | more)

    def quiet_until(self, happened: threading.Event) -> None:
        """Nothing but heartbeats comes before something has happened."""
        while not happened.is_set():
            with contextlib.suppress(TimeoutError):
                message = self.receive(0.01)
                assert message["type"] == "heartbeat", message
                self.say("heartbeat_ack", {})

    def hold(self) -> None:
        """Answer heartbeats until the client goes."""
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            while True:
                if self.receive()["type"] == "heartbeat":
                    self.say("heartbeat_ack", {})


def event(committed_id: int, id: str | None = None, partition: str = "p") -> dict[str, Any]:
    return {
        "id": id or f"e{committed_id}",
        "client_id": "other",
        "partitions": [partition],
        "committed_id": committed_id,
        "event": {"type": "set", "payload": {"target": f"k{committed_id}", "value": committed_id}},
        "status_updated_at": 1,
    }


class Peer:
    """A server that plays one script per connection, in order; the last one is played again and again."""

    def __init__(self, *scripts: Callable[[Line], None]) -> None:
        self._scripts = list(scripts)
        self._lock = threading.Lock()
        self.log: list[dict[str, Any]] = []
        self.errors: list[BaseException] = []
        self.url = ""

    def handle(self, socket: ServerConnection) -> None:
        with self._lock:
            script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        try:
            script(Line(socket, self.log))
        except ConnectionClosed:
            pass
        except BaseException as error:
            self.errors.append(error)
            raise


@contextlib.contextmanager
def playing(*scripts: Callable[[Line], None]) -> Iterator[Peer]:
    """A peer for one test; what its scripts found wrong is raised at the end."""
    peer = Peer(*scripts)
    server: Server = serve(peer.handle, "127.0.0.1", 0, compression=None)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    peer.url = f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
    try:
        yield peer
    finally:
        server.shutdown()
        thread.join()
    if peer.errors:
        raise AssertionError("the peer's script failed") from peer.errors[0]
