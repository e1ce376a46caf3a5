"""A new token before the old one ends: the next connection is made while this one still serves.

A token cannot be renewed on a connection (AUTH-04), but a newer connection takes over its client_id (CONN-05). It is
dialled, and has been answered `connected`, before the client leaves the old one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, TypeAlias

import aiohttp
import msgspec
from aiohttp import ClientWebSocketResponse, WSMsgType

from unisono.client.net.tokens import TokenSource
from unisono.client.options import Options
from unisono.client.reasons import without_tokens
from unisono.protocol.client_codec import BadMessage, Connected, ErrorMessage, MessageWriter, decode
from unisono.protocol.identities import unverified_claims

LIFE_SHARE: Final = 3
"""A token is replaced at the earliest after two thirds of its life, however short that is."""

RETRY_S: Final = 1.0
"""Between two attempts to get a newer token, at least."""


Socket: TypeAlias = "ClientWebSocketResponse[Literal[False]]"
"""One that gives text as bytes."""


class Successor(msgspec.Struct, frozen=True):
    """A connection that has been accepted under a new token."""

    socket: Any
    token: str
    connected: Connected


def renew_in_s(token: str, before_s: float, now_s: float) -> float | None:
    """When a token is to be replaced, in seconds from now; None when it does not say when it ends."""
    expires_at = unverified_claims(token).get("exp")
    if isinstance(expires_at, bool) or not isinstance(expires_at, int | float):
        return None
    left_s = expires_at - now_s
    return max(0.0, left_s - min(before_s, left_s / LIFE_SHARE))


async def first_answer(receive: Callable[[], Awaitable[bytes | None]]) -> Connected | str:
    """What the server answers to a connect: `connected`, or in words why not."""
    while (data := await receive()) is not None:
        try:
            message = decode(data)
        except BadMessage as error:
            return str(error)
        if isinstance(message, Connected):
            return message
        if isinstance(message, ErrorMessage):
            return f"{message.code}: {message.message}"
    return "the server closed the connection"


async def until_due(token: str, before_s: float) -> bool:
    """Sleep until a token is to be replaced; False when it never is."""
    wait_s = renew_in_s(token, before_s, time.time())
    if wait_s is None:
        return False
    await asyncio.sleep(wait_s)
    return True


class TokenRenewal:
    """Makes the connection that takes over. Invariant: at most one is being made."""

    def __init__(
        self,
        tokens: TokenSource,
        options: Options,
        open_socket: Callable[[aiohttp.ClientSession], Awaitable[Socket]],
        connect_payload: Callable[[str], bytes],
        before_switch: Callable[[], None],
        report: Callable[[str, str], None],
    ) -> None:
        """`before_switch` handles what the old connection has received."""
        self._tokens = tokens
        self._options = options
        self._open_socket = open_socket
        self._connect_payload = connect_payload
        self._before_switch = before_switch
        self._report = report
        self._task: asyncio.Task[Successor | None] | None = None
        self._taking_over = False

    def start(self, session: aiohttp.ClientSession, socket: Socket, token: str) -> None:
        """Replace this connection, whose token this is, when it is time."""
        self._taking_over = False
        self._task = asyncio.get_running_loop().create_task(self._renew(session, socket, token))

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def take(self, online: Callable[[], bool]) -> Successor | None:
        """The connection has ended: the one that takes over, if it is being made and the client is to be online.

        The server may close the old connection before it has answered on the new one.
        """
        task, self._task = self._task, None
        if task is None:
            return None
        if not self._taking_over or not online():
            task.cancel()
        await asyncio.wait([task])
        successor = None if task.cancelled() or task.exception() else task.result()
        if successor is not None and not online():
            await successor.socket.close()
            return None
        return successor

    async def _renew(self, session: aiohttp.ClientSession, socket: Socket, token: str) -> Successor | None:
        before_s = self._options.renew_before_s
        if self._tokens.fixed or before_s <= 0 or not await until_due(token, before_s):
            return None
        while not socket.closed:
            newer = await self._tokens.renew()
            if newer is not None:
                self._taking_over = True
                successor = await self._connected_with(session, newer)
                if successor is not None:
                    self._before_switch()
                    await socket.close()
                    return successor
                self._taking_over = False
            await asyncio.sleep(RETRY_S)
        return None

    async def _connected_with(self, session: aiohttp.ClientSession, token: str) -> Successor | None:
        """A second connection, answered `connected`; None, with the reason reported, when there is none."""
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                socket = await self._open_socket(session)
                answer = await self._answer(socket, token)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self._report("token_failed", f"the connection with a new token failed: {type(error).__name__}")
            return None
        if isinstance(answer, Connected):
            return Successor(socket, token, answer)
        await socket.close()
        self._report("token_failed", f"the new token: {without_tokens(answer, token)}")
        return None

    async def _answer(self, socket: Socket, token: str) -> Connected | str:
        async def receive() -> bytes | None:
            frame = await socket.receive()
            return frame.data if frame.type is WSMsgType.TEXT else None

        payload = self._connect_payload(token)
        message = MessageWriter().encode("connect", payload, time.time_ns() // 1_000_000)
        await socket.send_frame(message, WSMsgType.TEXT)
        return await first_answer(receive)
