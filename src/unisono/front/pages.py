"""Pages of history that a front has asked of the reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from unisono.authority.channel import AskPage, PageFailed, PageOf

UNDER_WAY_MAX: Final = 1024
"""Pages the reader may have to read at once. A connection has one; it may close and leave it behind, and whoever does
that again and again waits for the reader like everybody else (LIM-05)."""

Then: TypeAlias = Callable[[PageOf | None], None]


class Pages:
    """Who waits for which page.

    Invariant: a ticket stands in `_under_way` from when its page was asked for until the reader answered it, and in
    `_waiting` before that. Once given up it has no callback.
    """

    def __init__(self, send: Callable[[AskPage], None]) -> None:
        self._send = send
        self._waiting: dict[int, tuple[Callable[[int], AskPage], Then]] = {}
        self._under_way: dict[int, Then | None] = {}

    def ask(self, ticket: int, ask: Callable[[int], AskPage], then: Then) -> None:
        """`then` gets the page, or None when it cannot be read."""
        self._waiting[ticket] = (ask, then)
        self._send_some()

    def give_up(self, ticket: int) -> None:
        """Nobody waits for it any more; the reader may be reading it all the same."""
        self._waiting.pop(ticket, None)
        if ticket in self._under_way:
            self._under_way[ticket] = None

    def answered(self, message: PageOf | PageFailed) -> None:
        then = self._under_way.pop(message.ticket)
        self._send_some()
        if then is not None:
            then(message if isinstance(message, PageOf) else None)

    def _send_some(self) -> None:
        while self._waiting and len(self._under_way) < UNDER_WAY_MAX:
            ticket = next(iter(self._waiting))
            ask, then = self._waiting.pop(ticket)
            self._under_way[ticket] = then
            self._send(ask(ticket))
