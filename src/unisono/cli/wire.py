"""A connection for `tail` and `submit`: no store, no retries, one request at a time."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar
from urllib.parse import urlsplit

import aiohttp

from unisono.protocol.client_codec import (
    BadMessage,
    Connected,
    ErrorMessage,
    MessageWriter,
    ServerMessage,
    decode,
    plain_connect_payload,
)
from unisono.protocol.errors import CloseCode
from unisono.protocol.identities import DERIVED_CLAIM, client_id_of, unverified_claims

HEARTBEAT_S: Final = 10.0
"""A third of the server's default window."""

ANSWER_S: Final = 30.0

EARLY_MAX: Final = 100_000
"""Broadcasts kept while history is read; a busier server is asked again from where it stopped."""

FINAL_CLOSES: Final = (CloseCode.AUTH_FAILED, CloseCode.UNSUPPORTED, CloseCode.REPLACED)
PASSING_ERRORS: Final = ("server_error", "rate_limited")

NO_CLIENT_ID: Final = "this is not a token with a client_id claim"

M = TypeVar("M")


class WireFailed(Exception):
    """The server refused or closed the connection; the text says which.

    `final`: another try ends the same way, because of the token, the request, or a newer connection of the client.
    """

    def __init__(self, text: str, *, final: bool = True) -> None:
        super().__init__(text)
        self.final = final


class Wire:
    """One connected session."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._writer = MessageWriter()
        self.connected = Connected()
        """The server's answer to `connect`."""
        self._early: list[ServerMessage] = []

    @property
    def extensions(self) -> tuple[str, ...]:
        """Those the server has granted."""
        granted = self.connected.capabilities
        return () if granted is None else tuple(granted.extensions)

    async def send(self, kind: str, payload: bytes = b"{}") -> None:
        message = self._writer.encode(kind, payload, time.time_ns() // 1_000_000)
        try:
            await self._socket.send_str(message.decode())
        except (ConnectionError, aiohttp.ClientError) as error:
            raise WireFailed(f"the connection is lost: {error}", final=False) from None

    async def receive(self, timeout_s: float) -> ServerMessage | None:
        """The next message of a known type; None when none came in time. WireFailed for an error or the end."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                frame = await self._socket.receive(timeout=max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                return None
            if frame.type is not aiohttp.WSMsgType.TEXT:
                code = self._socket.close_code
                raise WireFailed(f"the server closed the connection ({code})", final=code in FINAL_CLOSES)
            try:
                message = decode(frame.data)
            except BadMessage as error:
                raise WireFailed(str(error)) from None
            if isinstance(message, ErrorMessage):
                final = message.code not in PASSING_ERRORS
                raise WireFailed(f"{message.code}: {message.message}", final=final)
            if message is not None:
                return message

    async def answer(self, kind: type[M]) -> M:
        """The next message of this kind; others on the way are kept for `take_early`."""
        while True:
            message = await self.receive(ANSWER_S)
            if message is None:
                raise WireFailed("the server does not answer", final=False)
            if isinstance(message, kind):
                return message
            if len(self._early) >= EARLY_MAX:
                raise WireFailed(f"more than {EARLY_MAX} messages came before an answer", final=False)
            self._early.append(message)

    def take_early(self) -> list[ServerMessage]:
        """What came while an answer was waited for, such as broadcasts between two pages of history."""
        early, self._early = self._early, []
        return early


def _path_hint(url: str) -> str:
    """For who gives the host alone."""
    return (
        ""
        if urlsplit(url).path.strip("/")
        else f" (a server's address ends in /sync: {url.rstrip('/')}/sync)"
    )


def own_client_id(token: str, command: str) -> str:
    """A client_id for one run of a command: derived from the token's where the token allows it (AUTH-09).

    Otherwise it is the token's own, and a person is warned that a running client of that name is disconnected.
    """
    principal = client_id_of(token)
    if principal is None:
        raise WireFailed(NO_CLIENT_ID)
    if unverified_claims(token).get(DERIVED_CLAIM) is True:
        return f"{principal}/{command}-{secrets.token_hex(4)}"
    if sys.stderr.isatty():
        print(
            f"{command}: connecting as {principal!r}; a client that is connected under this client_id is disconnected"
            f" (a token with the claim {DERIVED_CLAIM} avoids that)",
            file=sys.stderr,
        )
    return principal


@asynccontextmanager
async def connect(
    url: str, token: str, profiles: Sequence[str], command: str, extensions: Sequence[str] = ()
) -> AsyncIterator[Wire]:
    """A session that has been answered `connected`."""
    client_id = own_client_id(token, command)
    async with aiohttp.ClientSession() as session:
        try:
            socket = await session.ws_connect(url, max_msg_size=0)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            text = f"cannot connect to {url}: {error}{_path_hint(url)}"
            raise WireFailed(text, final=isinstance(error, ValueError)) from None
        async with socket:
            wire = Wire(socket)
            await wire.send("connect", plain_connect_payload(token, client_id, profiles, extensions))
            wire.connected = await wire.answer(Connected)
            yield wire
            await wire.send("disconnect")
