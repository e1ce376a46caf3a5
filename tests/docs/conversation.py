"""A conversation with a real server, and its messages as the examples of messages.md and extensions.md."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.behaviour.server.harness import Peer, Server, running
from tests.waiting import PATIENCE_S
from unisono.samples import sample_model

PAGES: Final = ("docs/protocol/messages.md", "docs/protocol/extensions.md")
WIDTH: Final = 100

_BLOCK = re.compile(r"^```json example=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# What differs from run to run gets a value that does not.
_STEADY: Final[Mapping[str, Any]] = {
    "timestamp": 1794700000000,
    "server_time": 1794700000000,
    "status_updated_at": 1794700000000,
    "retry_after_ms": 10000,
    "log_id": "6f1d0a4be2c94c0f9a53d7c1b08e2f64",
    "model_digest": "2ac1d6f0…",
    "token": "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.…",
}


def spliced(page: str, examples: Mapping[str, str]) -> str:
    """The page with every example as it was just said; KeyError for an example nobody said."""
    return _BLOCK.sub(lambda block: f"```json example={block[1]}\n{examples[block[1]]}\n```", page)


def shown(page: str) -> list[str]:
    """The names of the examples on the page."""
    return [block[1] for block in _BLOCK.finditer(page)]


def hold() -> dict[str, str]:
    """Talk to a server about everything the protocol knows; name → message."""
    with tempfile.TemporaryDirectory() as place:
        model = Path(place) / "model"
        shutil.copytree(sample_model(), model, ignore=shutil.ignore_patterns("__pycache__"))
        limits = ("--rate-events-per-s", "0.02", "--rate-burst-events", "20")
        with running(Path(place) / "data", "--model", str(model), *limits) as server:
            talk = _Talk(server, model)
            talk.go()
    return {name: pretty(message) for name, message in talk.said.items()}


class _Talk:
    """Alice writes canonical events, Bob tree actions; both may touch `team/` and nothing else."""

    def __init__(self, server: Server, model: Path) -> None:
        self._server = server
        self._model = model
        self.said: dict[str, Any] = {}

    def go(self) -> None:
        alice = self._connected("alice", ["canonical", "compatibility"], "")
        bob = self._connected("bob", ["compatibility"], "-compatibility")
        with alice, bob:
            self._say(alice, "heartbeat", {}, "heartbeat")
            self._hear(alice, "heartbeat_ack", "heartbeat_ack")
            self._submit(alice, bob)
            self._sync(bob)
            self._refusals(bob)
            self._too_fast()
            self._new_model(alice)
            self._say(alice, "disconnect", {"reason": "client_shutdown"}, "disconnect")
            alice.expect_close(1000)
        self._first_sync()
        self._extensions()
        self._history()
        self._closing()

    def _connected(self, who: str, profiles: list[str], suffix: str) -> Peer:
        peer = self._server.peer()
        token = self._server.token(who, prefixes=["team/"])
        wish = {"token": token, "client_id": who, "last_committed_id": 0, "supported_profiles": profiles}
        self._say(peer, "connect", wish, f"connect{suffix}")
        self._hear(peer, "connected", f"connected{suffix}")
        return peer

    def _submit(self, alice: Peer, bob: Peer) -> None:
        bob.subscribe("team/plans")
        milk = {"type": "event", "payload": {"schema": "note.added", "data": {"id": "n1", "text": "milk"}}}
        again = {"type": "event", "payload": {"schema": "note.added", "data": {"id": "n1", "text": "bread"}}}
        partitions = ["team/plans"]
        events = [
            {"id": "0b6c2f0e-4e0f-4bb1-8f6e-5a2f3f0c9a01", "partitions": partitions, "event": milk},
            {"id": "0b6c2f0e-4e0f-4bb1-8f6e-5a2f3f0c9a02", "partitions": partitions, "event": again},
            {"id": "0b6c2f0e-4e0f-4bb1-8f6e-5a2f3f0c9a03", "partitions": ["boss"], "event": milk},
        ]
        self._say(alice, "submit_events", {"events": events}, "submit_events")
        self._hear(alice, "submit_events_result", "submit_events_result")
        self._hear(bob, "event_broadcast", "event_broadcast")
        push = {"type": "treePush", "payload": {"target": "outline", "value": {"id": "A", "title": "Plans"}}}
        tree = {"id": "7d1f6a52-0c4a-4d0e-9a6b-21f1f3a3b001", "partitions": partitions, "event": push}
        self._say(bob, "submit_event", tree, "submit_event")
        self._hear(bob, "event_committed", "event_committed")
        self._say(bob, "submit_event", tree | {"id": "7d1f6a52-0c4a-4d0e-9a6b-21f1f3a3b002"}, "")
        self._hear(bob, "event_rejected", "event_rejected")

    def _sync(self, bob: Peer) -> None:
        wish = {
            "partitions": ["team/plans"],
            "subscription_partitions": ["team/plans", "team/ideas"],
            "since_committed_id": 0,
            "limit": 500,
        }
        self._say(bob, "sync", wish, "sync")
        self._hear(bob, "sync_response", "sync_response")
        self._say(bob, "sync", {"partitions": ["team/plans"], "since_committed_id": 99}, "sync-ahead")
        self._hear(bob, "sync_response", "sync_response-ahead")

    def _refusals(self, bob: Peer) -> None:
        self._say(bob, "sink", {}, "")
        self._hear(bob, "error", "error-bad_request")
        self._say(bob, "sync", {"partitions": [""], "since_committed_id": 0}, "")
        self._hear(bob, "error", "error-validation_failed")
        self._say(bob, "sync", {"partitions": ["team/plans", "boss"], "since_committed_id": 0}, "")
        self._hear(bob, "error", "error-forbidden")

    def _too_fast(self) -> None:
        note = {"type": "set", "payload": {"target": "settings.theme", "value": "dark"}}
        with self._server.peer() as carol:
            token = self._server.token("carol", prefixes=["team/"])
            carol.connect("carol", token, supported_profiles=["compatibility"])
            carol.submit(*({"id": f"a{n}", "partitions": ["team/x"], "event": note} for n in range(20)))
            events = [{"id": f"b{n}", "partitions": ["team/x"], "event": note} for n in range(20)]
            self._say(carol, "submit_events", {"events": events}, "")
            self._hear(carol, "error", "error-rate_limited")

    def _new_model(self, alice: Peer) -> None:
        manifest = self._model / "model.toml"
        manifest.write_text(manifest.read_text().replace("model_version = 1", "model_version = 2"))
        self._order("reload")
        # Bob's tree events were broadcast to nobody, so this is the next that Alice hears.
        self._hear(alice, "version_changed", "version_changed")

    def _order(self, order: str) -> None:
        admin = json.loads((self._server.data / "admin.json").read_text())
        request = urllib.request.Request(
            f"{admin['url']}/orders/{order}",
            method="POST",
            headers={"Authorization": f"Bearer {admin['token']}"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            assert answer.status == 200

    def _first_sync(self) -> None:
        self._order("snapshot?partition=team/plans")
        push = {"type": "treePush", "payload": {"target": "outline", "value": {"id": "B", "title": "Done"}}}
        tree = {"id": "7d1f6a52-0c4a-4d0e-9a6b-21f1f3a3b003", "partitions": ["team/plans"], "event": push}
        with self._server.peer() as dora:
            token = self._server.token("dora", prefixes=["team/"])
            dora.connect("dora", token, supported_profiles=["compatibility"], snapshots=True)
            (result,) = dora.submit(tree)
            assert result["status"] == "committed"
            self._say(dora, "sync", {"partitions": ["team/plans"], "since_committed_id": 0}, "")
            self._hear(dora, "sync_response", "sync_response-snapshots")

    def _extensions(self) -> None:
        with self._server.peer() as ann:
            token = self._server.token("ann-phone", prefixes=["team/"], user_id="ann")
            wish = {
                "token": token,
                "client_id": "ann-phone",
                "supported_profiles": ["compatibility"],
                "extensions": ["identity", "presence", "atomic"],
            }
            self._say(ann, "connect", wish, "connect-extensions")
            self._hear(ann, "connected", "connected-extensions")
            ann.subscribe("team/plans")
            value = {"name": "Ann", "cursor": {"item": "A"}}
            self._say(ann, "presence", {"partition": "team/plans", "value": value}, "presence")
            self._hear(ann, "presence_update", "presence_update")
            self._say(ann, "submit_events", _transfer("A", "A", 4), "submit_events-atomic")
            self._hear(ann, "submit_events_result", "submit_events_result-atomic")
            self._say(ann, "submit_events", _transfer("B", "A", 6), "")
            self._hear(ann, "submit_events_result", "submit_events_result-atomic-refused")

    def _history(self) -> None:
        with self._server.peer() as ann:
            token = self._server.token("ann-phone", prefixes=["team/"], user_id="ann")
            ann.connect(
                "ann-phone",
                token,
                supported_profiles=["compatibility"],
                extensions=["identity", "history"],
            )
            first = {"request_id": "h1", "partition": "team/plans", "limit": 2}
            self._say(ann, "history", first, "history")
            self._hear(ann, "history_result", "history_result")
            self._say(ann, "history", {"request_id": "h2", "partition": "board/7"}, "")
            self._hear(ann, "history_result", "history_result-error")

    def _closing(self) -> None:
        with self._server.peer() as peer:
            self._say(peer, "connect", {"token": "not a token", "client_id": "alice"}, "")
            self._hear(peer, "error", "error-auth_failed")
            peer.expect_close(4001)
        with self._server.peer() as peer:
            peer.send("heartbeat", {}, protocol_version="2.0")
            self._hear(peer, "error", "error-protocol_version_unsupported")
            peer.expect_close(4002)
        with self._server.peer() as peer:
            token = self._server.token("alice")
            wish = {"token": token, "client_id": "alice", "supported_profiles": ["crdt"]}
            self._say(peer, "connect", wish, "")
            self._hear(peer, "error", "error-profile_unsupported")
            peer.expect_close(4002)

    def _say(self, peer: Peer, kind: str, payload: dict[str, Any], name: str) -> None:
        message = peer.envelope(kind, payload)
        peer.raw(json.dumps(message))
        if name:
            self.said[name] = steady(message)

    def _hear(self, peer: Peer, kind: str, name: str) -> None:
        self._keep(peer.receive(), kind, name)

    def _keep(self, message: dict[str, Any], kind: str, name: str) -> None:
        assert message["type"] == kind, message
        self.said[name] = steady(message)


def _transfer(gone: str, added: str, number: int) -> dict[str, Any]:
    """One item out of a tree and one into another."""
    delete = {"type": "treeDelete", "payload": {"target": "outline", "options": {"id": gone}}}
    push = {"type": "treePush", "payload": {"target": "explorer", "value": {"id": added, "title": "Plans"}}}
    events = [
        {"id": f"7d1f6a52-0c4a-4d0e-9a6b-21f1f3a3b00{id}", "partitions": ["team/plans"], "event": event}
        for id, event in enumerate((delete, push), number)
    ]
    return {"atomic": True, "events": events}


def steady(value: Any) -> Any:
    """The message with what differs from run to run replaced."""
    if isinstance(value, dict):
        return {key: _STEADY[key] if key in _STEADY else steady(part) for key, part in value.items()}
    return [steady(part) for part in value] if isinstance(value, list) else value


def pretty(value: Any, indent: int = 0, before: int = 0) -> str:
    """JSON that breaks a line only where it has to."""
    line = json.dumps(value, ensure_ascii=False)
    if indent + before + len(line) <= WIDTH or not isinstance(value, dict | list) or not value:
        return line
    pad = " " * (indent + 2)
    if isinstance(value, dict):
        keys = [f"{json.dumps(key, ensure_ascii=False)}: " for key in value]
        parts = [
            f"{pad}{key}{pretty(part, indent + 2, len(key) + 1)}"
            for key, part in zip(keys, value.values(), strict=True)
        ]
        return "{\n" + ",\n".join(parts) + f"\n{' ' * indent}}}"
    parts = [f"{pad}{pretty(part, indent + 2, 1)}" for part in value]
    return "[\n" + ",\n".join(parts) + f"\n{' ' * indent}]"
