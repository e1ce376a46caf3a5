"""Where tokens come from: a fixed one, or a function that is called after the server refuses one (CLIENT-08)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable

from unisono.client.config import Token
from unisono.client.reasons import without_tokens


class TokenFailed(Exception):
    """The program could not give a token; the text says why, without any token (AUTH-08)."""


class TokenSource:
    """Keeps a token until it is refused.

    An async function runs on the loop of the program that gave it, where its sessions and locks belong; without
    one, on the engine's. A plain function runs in a thread, so that it may block.
    """

    def __init__(self, given: Token, loop: asyncio.AbstractEventLoop | None) -> None:
        self._given = given
        self._loop = loop
        self._kept: str | None = None
        self._last: str | None = None
        self._was_new = False

    @property
    def fixed(self) -> bool:
        """Whether there is one token and never another."""
        return isinstance(self._given, str)

    async def get(self) -> str:
        if isinstance(self._given, str):
            return self._given
        self._was_new = self._kept is None
        if self._kept is None:
            try:
                self._kept = await self._ask()
            except Exception as error:
                says = without_tokens(f"{type(error).__name__}: {error}", self._last)
                raise TokenFailed(f"asking for a token failed: {says}") from error
            self._last = self._kept
        return self._kept

    async def renew(self) -> str | None:
        """Another token than the present one, which stays; None when there is none to be had now."""
        if isinstance(self._given, str):
            return None
        try:
            token = await self._ask()
        except Exception:
            return None  # the old one still serves; when it ends, `get` says what is wrong
        return None if token == self._kept else token

    def adopt(self, token: str) -> None:
        """The server has accepted this one."""
        self._kept = self._last = token
        self._was_new = False

    def refused(self) -> bool:
        """Forget the token; True when it had been used before, so that a newer one may well be accepted."""
        self._kept = None
        return not isinstance(self._given, str) and not self._was_new

    async def _ask(self) -> str:
        given = self._given
        assert not isinstance(given, str)
        asynchronous = inspect.iscoroutinefunction(given)
        answer = given() if asynchronous else await asyncio.to_thread(given)
        if not inspect.isawaitable(answer):
            return _checked(answer)
        if self._loop is None or self._loop is asyncio.get_running_loop():
            return _checked(await answer)
        theirs = asyncio.run_coroutine_threadsafe(_awaited(answer), self._loop)
        return _checked(await asyncio.wrap_future(theirs))


async def _awaited(answer: Awaitable[object]) -> object:
    return await answer


def _checked(token: object) -> str:
    if not isinstance(token, str) or not token:
        raise TypeError("a token is a non-empty string")
    return token
