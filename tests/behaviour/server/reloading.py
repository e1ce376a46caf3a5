"""A server with a model that a test replaces, and the order to reload it."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.behaviour.server.harness import Peer, Server
from tests.forking import run
from tests.waiting import PATIENCE_S
from unisono.ipc.files import ADMIN_FILE

LIMITED = """
from unisono.model.rules import Event, Rules, refuse

rules = Rules()

@rules.check("note")
def not_more_than(state, event: Event):
    if state.get("notes", 0) >= {most}:
        yield refuse("", "there are notes enough")

@rules.reduce("note")
def count(state, event: Event) -> None:
    state["notes"] = state.get("notes", 0) + 1
"""


class Modelled:
    """A server on a model directory that tests write to; versions only go up, from test to test."""

    def __init__(self, server: Server, path: Path) -> None:
        self.server = server
        self.path = path
        self.version = 1

    def write(self, version: int, longest: int = 100, most: int = 1_000_000) -> None:
        """A model of notes: how long one may be, and how many a partition may hold."""
        write_model(self.path, version, longest, most)

    def reload(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`unisono model reload` as an operator runs it."""
        return run_reload(self.server.data, *arguments)

    def order(self, query: str = "") -> tuple[int, dict[str, Any]]:
        """What that command asks of the admin port; a process for every order would take its time."""
        token = json.loads((self.server.data / ADMIN_FILE).read_text())["token"]
        return post(self.server, f"/orders/reload{query}", Authorization=f"Bearer {token}")

    def raise_version(self, **limits: int) -> int:
        """Put the next version into force."""
        self.version += 1
        self.write(self.version, **limits)
        status, told = self.order()
        assert status == 200, told
        return self.version

    def client(self, client_id: str) -> Peer:
        return self.server.client(client_id, "canonical")


def write_model(path: Path, version: int, longest: int = 100, most: int = 1_000_000) -> None:
    (path / "schemas").mkdir(parents=True, exist_ok=True)
    (path / "schemas" / "note.json").write_text(json.dumps({"type": "string", "maxLength": longest}))
    (path / "rules.py").write_text(LIMITED.format(most=most))
    (path / "model.toml").write_text(f'name = "notes"\nmodel_version = {version}\nrules = "rules.py"\n')


def run_reload(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run("model", "reload", "--data", data, *arguments)


def post(server: Server, path: str, **headers: str) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(server.admin + path, method="POST", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.loads(refused.read())


def note(text: str = "a note") -> dict[str, Any]:
    return {"type": "event", "payload": {"schema": "note", "data": text}}


def announced_version(server: Server, client_id: str, profile: str = "canonical") -> int:
    """What a new connection hears in connected and in sync_response; they must agree."""
    with server.peer() as peer:
        connected = peer.connect(client_id, server.token(client_id), supported_profiles=[profile])
        version: int = connected["model_version"]
        assert peer.sync(["any"])["model_version"] == version
        return version
