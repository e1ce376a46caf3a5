"""A running server asked to change its log: the orders of its admin port, over plain HTTP.

The file in the data directory that only its owner can read tells where the port is and the token for orders; a server
that starts anew writes it anew, so it is read for every connection.
"""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from unisono.store.maintenance import EraseRequest, Publication, ReclaimProgress

ADMIN_FILE: Final = "admin.json"

ANSWER_S: Final = 120.0
"""For one order: a step takes milliseconds, but it may have to wait for its turn."""

_encode = msgspec.msgpack.Encoder().encode


class Unreachable(Exception):
    """No server answers there now."""


class AdminRefused(Exception):
    """The server would not do it; the text is its own."""


class Admin(msgspec.Struct):
    """Where a server's admin port is, and the token for orders."""

    url: str
    token: str


def admin_of(directory: Path) -> Admin:
    """Of the server on a data directory; FileNotFoundError where none has been."""
    return msgspec.json.decode((directory / ADMIN_FILE).read_bytes(), type=Admin)


class AdminPort:
    """The admin port of the server on a data directory; one connection, made anew when it is gone."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._connection: http.client.HTTPConnection | None = None
        self._token = ""

    def archive(self, location: str) -> None:
        self._order("archive", _encode(location))

    def prune(self, upto: int) -> int:
        return int(self._order("prune", _encode(upto))["events"])

    def snapshots(self, publication: Publication) -> None:
        self._order("snapshots", _encode(publication))

    def erase(self, erasure: EraseRequest) -> tuple[int, int]:
        """How many events lost their text, and the erasures so far."""
        told = self._order("erase", _encode(erasure))
        return int(told["events"]), int(told["erasures"])

    def reclaim(self) -> ReclaimProgress:
        return msgspec.convert(self._order("reclaim", b""), ReclaimProgress)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _order(self, command: str, body: bytes) -> dict[str, Any]:
        try:
            status, answer = self._exchange(command, body)
            told: dict[str, Any] = msgspec.json.decode(answer, type=dict[str, Any])
        except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
            self.close()
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        if status == http.HTTPStatus.OK:
            return told
        text = str(told.get("error", told))
        if status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.SERVICE_UNAVAILABLE):
            self.close()  # another server has taken the port, or this one is going
            raise Unreachable(text)
        raise AdminRefused(text)

    def _exchange(self, command: str, body: bytes) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = self._connect()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/msgpack"}
        self._connection.request("POST", f"/orders/{command}", body, headers)
        response = self._connection.getresponse()
        return response.status, response.read()

    def _connect(self) -> http.client.HTTPConnection:
        admin = admin_of(self._directory)
        self._token = admin.token
        parts = urlsplit(admin.url)
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_S)
