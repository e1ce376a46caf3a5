"""Maintenance commands to a running server, over its admin port by HTTP.

`admin.json` in the data directory, readable by its owner only, has the port's address and the token. Every start of a
server writes a new one, so it is read for every connection.
"""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from unisono.ipc.files import read_admin_file

ANSWER_S: Final = 120.0
"""Time for one command: a step takes milliseconds, but may wait for its turn."""

_encode = msgspec.msgpack.Encoder().encode


class Unreachable(Exception):
    """No server answers on the admin port now."""


class AdminRefused(Exception):
    """The server refused a command; the text is the server's."""


class AdminPort:
    """One connection to the admin port of the server on a data directory; opened again after it breaks."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._connection: http.client.HTTPConnection | None = None
        self._token = ""

    def execute(self, command: str, argument: object = None) -> dict[str, Any]:
        """Run one of the maintenance commands, with its argument as MessagePack; return the server's answer."""
        try:
            status, answer = self._exchange(command, b"" if argument is None else _encode(argument))
            result: dict[str, Any] = msgspec.json.decode(answer, type=dict[str, Any])
        except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
            self.close()
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        if status == http.HTTPStatus.OK:
            return result
        text = str(result.get("error", result))
        if status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.SERVICE_UNAVAILABLE):
            self.close()  # another server has taken the port, or this one is stopping
            raise Unreachable(text)
        raise AdminRefused(text)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, command: str, body: bytes) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = self._connect()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/msgpack"}
        self._connection.request("POST", f"/orders/{command}", body, headers)
        response = self._connection.getresponse()
        return response.status, response.read()

    def _connect(self) -> http.client.HTTPConnection:
        admin = read_admin_file(self._directory)
        self._token = admin.token
        parts = urlsplit(admin.url)
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_S)
