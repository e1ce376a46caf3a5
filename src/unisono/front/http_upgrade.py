"""Reads the HTTP request that opens a WebSocket (RFC 9112, RFC 6455 4.2.1), strictly; no I/O.

Whatever two readers could understand differently is refused: folded lines, control characters, spaces around names,
bodies, and headers that come twice where one is meant.
"""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha1
from http import HTTPStatus
from typing import Final

import msgspec

PATH: Final = b"/sync"
VERSION: Final = b"13"

MAX_HEADERS: Final = 128

_KEY_SUFFIX: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""Of RFC 6455."""

_REQUEST_LINE: Final = re.compile(rb"GET ([\x21-\x7e\x80-\xff]+) HTTP/1\.1")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]++):([\t\x20-\x7e\x80-\xff]*+)")
_KEY: Final = re.compile(rb"[A-Za-z0-9+/]{22}==")
"""16 bytes in base64."""


class RefusedUpgrade(Exception):
    """The request is answered with this status; `headers` are whole lines."""

    def __init__(self, status: HTTPStatus, text: str, headers: bytes = b"") -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


class UpgradeRequest(msgspec.Struct, frozen=True):
    """A request that may be upgraded; `origins`: its `Origin` headers."""

    key: bytes
    origins: tuple[bytes, ...]


def read_upgrade(head: bytes) -> UpgradeRequest:
    """The request whose lines these are, without the empty line at the end; RefusedUpgrade for any other."""
    line, *lines = head.split(b"\r\n")
    asked = _REQUEST_LINE.fullmatch(line)
    if asked is None:
        raise _bad("the request is not GET of HTTP/1.1")
    headers = _headers(lines)
    if b"transfer-encoding" in headers or any(
        length.strip(b"0") or not length for length in headers.get(b"content-length", ())
    ):
        raise _bad("the request has a body")
    if len(headers.get(b"content-length", ())) > 1:
        raise _bad("one Content-Length is enough")
    if asked[1].partition(b"?")[0] != PATH:
        raise RefusedUpgrade(HTTPStatus.NOT_FOUND, "the path is /sync")
    if len(headers.get(b"host", ())) != 1:
        raise _bad("one Host header is needed")
    if not _has_token(headers, b"upgrade", b"websocket"):
        raise _bad("the header Upgrade: websocket is needed")
    if headers.get(b"sec-websocket-version") != [VERSION]:
        raise RefusedUpgrade(
            HTTPStatus.UPGRADE_REQUIRED,
            "the WebSocket version here is 13",
            b"Upgrade: websocket\r\nSec-WebSocket-Version: %b\r\n" % VERSION,
        )
    if not _has_token(headers, b"connection", b"upgrade"):
        raise _bad("the header Connection: Upgrade is needed")
    keys = headers.get(b"sec-websocket-key", ())
    if len(keys) != 1 or not is_key(keys[0]):
        raise _bad("one Sec-WebSocket-Key of 16 bytes is needed")
    return UpgradeRequest(keys[0], tuple(headers.get(b"origin", ())))


def is_key(key: bytes) -> bool:
    return _KEY.fullmatch(key) is not None


def accepting_answer(key: bytes) -> bytes:
    """The answer that upgrades a request with this key."""
    accept = b64encode(sha1(key + _KEY_SUFFIX, usedforsecurity=False).digest())
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: %b\r\n\r\n" % accept
    )


def refusing_answer(refused: RefusedUpgrade) -> bytes:
    """The answer after which the socket is closed."""
    status = refused.status
    body = f"{status.value} {status.phrase}: {refused}\n".encode()
    return (
        b"HTTP/1.1 %d %b\r\n%bConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\n"
        b"Content-Length: %d\r\n\r\n%b"
        % (status.value, status.phrase.encode(), refused.headers, len(body), body)
    )


def _headers(lines: list[bytes]) -> dict[bytes, list[bytes]]:
    """The values of each header, by its name in small letters."""
    if len(lines) > MAX_HEADERS:
        raise _bad(f"more than {MAX_HEADERS} headers")
    headers: dict[bytes, list[bytes]] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            raise _bad("a header is not valid")
        name, value = header.groups()
        headers.setdefault(name.lower(), []).append(value.strip(b" \t"))
    return headers


def _has_token(headers: dict[bytes, list[bytes]], name: bytes, token: bytes) -> bool:
    """Whether a token is in the lists of a header, which may come several times."""
    return any(
        token == each.strip(b" \t").lower() for value in headers.get(name, ()) for each in value.split(b",")
    )


def _bad(text: str) -> RefusedUpgrade:
    return RefusedUpgrade(HTTPStatus.BAD_REQUEST, text)
