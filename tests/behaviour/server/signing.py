"""Tokens signed with every kind of key, and a server started with the options of a test."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.behaviour.server.harness import SECRET, Server

TTLS_S = (0.7, 4.0, 20.0)
"""How long a token lasts whose end is waited for."""


class OwnCommand(Server):
    """A server started by a command of the test's own, for keys and parts the ordinary one does not have."""

    def __init__(self, data: Path, command: Sequence[str]) -> None:
        super().__init__(data)
        self.command = command

    def start(self) -> Server:
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                self.command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        assert self.process.stdout is not None
        match = re.fullmatch(r"unisono ready (\S+) admin (\S+)\n", self.process.stdout.readline())
        if match is None:
            self.kill()
            raise AssertionError(f"no ready line; log:\n{self.log.read_text()}")
        self.url, self.admin = match.groups()
        return self


def claims(who: str, **changes: Any) -> dict[str, Any]:
    """Claims of a good token; `...` leaves one out."""
    base = {"client_id": who, "exp": time.time() + 600} | changes
    return {name: value for name, value in base.items() if value is not ...}


def by_hand(header: dict[str, Any], body: dict[str, Any], secret: bytes = SECRET) -> str:
    """A token as only an attacker writes it: the header says what it likes, the signature is HMAC-SHA256."""
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (header, body)
    ]
    text = ".".join(parts)
    signature = hmac.digest(secret, text.encode(), hashlib.sha256)
    return f"{text}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def accepted(server: Server, who: str, token: str) -> None:
    with server.peer() as peer:
        assert peer.connect(who, token)["client_id"] == who


def refused(server: Server, who: str, token: str) -> str:
    """The connect is refused and the socket closed; the message."""
    with server.peer() as peer:
        peer.send("connect", {"token": token, "client_id": who})
        error = peer.expect_error("auth_failed")
        peer.expect_close(4001)
    assert error.keys() == {"code", "message"}
    message: str = error["message"]
    assert len(token) < 20 or token not in message
    return message


HS256 = {"alg": "HS256", "typ": "JWT"}
