"""A plain speaker of the protocol for the terminal commands: no store, no retries, one question at a time."""

from __future__ import annotations

import base64
import binascii
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import aiohttp

HEARTBEAT_S = 10.0
"""A third of the server's default window."""

ANSWER_S = 30.0


class WireFailed(Exception):
    """The server refused or went away; the text says which."""


def client_id_of(token: str) -> str:
    """The client_id a token speaks of; its signature is the server's to check."""
    try:
        body = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        client_id = claims["client_id"]
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error):
        raise WireFailed("this is not a token with a client_id claim") from None
    return str(client_id)


class Wire:
    """One connected session."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = count(1)

    async def send(self, kind: str, payload: dict[str, Any]) -> None:
        await self._socket.send_str(
            json.dumps(
                {
                    "type": kind,
                    "msg_id": f"c{next(self._numbers)}",
                    "timestamp": time.time_ns() // 1_000_000,
                    "protocol_version": "1.0",
                    "payload": payload,
                }
            )
        )

    async def receive(self, timeout_s: float | None = ANSWER_S) -> dict[str, Any] | None:
        """The next message; None when nothing came in time. WireFailed when the server ends it."""
        try:
            frame = await self._socket.receive(timeout=timeout_s)
        except TimeoutError:
            return None
        if frame.type is not aiohttp.WSMsgType.TEXT:
            raise WireFailed(f"the server closed the connection ({self._socket.close_code})")
        message: dict[str, Any] = json.loads(frame.data)
        return message

    async def answer(self, *kinds: str) -> dict[str, Any]:
        """The next message of one of these kinds; broadcasts on the way are passed over."""
        while True:
            message = await self.receive()
            if message is None:
                raise WireFailed("the server does not answer")
            if message["type"] == "error":
                told = message["payload"]
                raise WireFailed(f"{told['code']}: {told['message']}")
            if message["type"] in kinds:
                return message


@asynccontextmanager
async def connect(url: str, token: str, profiles: Sequence[str]) -> AsyncIterator[Wire]:
    """A session that has been answered `connected`."""
    async with aiohttp.ClientSession() as session:
        try:
            socket = await session.ws_connect(url, max_msg_size=0)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise WireFailed(f"cannot connect to {url}: {error}") from None
        async with socket:
            wire = Wire(socket)
            await wire.send(
                "connect",
                {"token": token, "client_id": client_id_of(token), "supported_profiles": list(profiles)},
            )
            await wire.answer("connected")
            yield wire
            await wire.send("disconnect", {})
