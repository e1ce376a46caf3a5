"""Applications on screens that nobody sees, with keys that nobody presses, before a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from textual import events
from textual.keys import _character_to_key
from textual.pilot import Pilot

from tests.behaviour.server.harness import Server
from tests.client.running import WAIT_S, of, until
from unisono.client import Phase
from unisono.terminal.app import OutlineApp


class Screen:
    """One application, what is on its screen, and a hand at its keys."""

    def __init__(self, app: OutlineApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.client = app.client
        self._pilot = pilot

    async def press(self, *keys: str) -> None:
        """All at once, faster than any hand; then wait until everything has been handled."""
        for key in keys:
            self.app.post_message(_event(key))
        await self.handled()

    async def handled(self) -> None:
        """A key may go from the application to a widget and, if that has no use for it, all the way back."""
        for pump in (self.app, self.app.screen, self.app.focused, self.app.screen, self.app):
            done = asyncio.Event()
            if pump is not None and pump.call_later(done.set):
                await asyncio.wait_for(done.wait(), WAIT_S)

    async def click(self, y: int) -> None:
        with self.app._context():
            await self._pilot.click(self.app.outline_view, offset=(4, y))

    async def type(self, text: str) -> None:
        await self.press(*text, "enter")

    async def add(self, *titles: str) -> None:
        for title in titles:
            await self.press("a")
            await self.type(title)

    @property
    def lines(self) -> list[str]:
        """Everything on the screen."""
        return [strip.text.rstrip() for strip in self.app.screen._compositor.render_strips()]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def outline(self) -> list[str]:
        """The rows of the outline that are on the screen, without the margin."""
        view = self.app.outline_view
        drawn = (view.render_line(y).text.rstrip() for y in range(view.size.height))
        return [line for line in drawn if line]

    @property
    def selected(self) -> str | None:
        row = self.app.outline_view.row
        return None if row is None else row.title

    async def shows(self, *rows: str) -> None:
        """Wait until exactly these rows are there."""
        await self._until(lambda: self.outline == list(rows), f"{rows} are to be there")

    async def says(self, *words: str) -> None:
        """Wait until all these words are somewhere on the screen."""
        await self._until(lambda: all(word in self.text for word in words), f"{words} are to be said")

    async def is_live(self) -> None:
        await self.client.caught_up(WAIT_S)
        await self.says("● live", "0 pending")

    async def goes_offline(self) -> None:
        await self.press("o")
        await until(lambda: self.client.status.phase is Phase.OFFLINE)
        await self.says("offline on purpose")

    async def _until(self, condition: Any, told: str) -> None:
        try:
            await until(condition)
        except AssertionError:
            raise AssertionError(f"{told}, but:\n{self.text}") from None


def _event(key: str) -> events.Key:
    """A key by its name, or the character it makes."""
    if len(key) == 1:
        return events.Key(key if key.isalnum() else _character_to_key(key), key)
    return events.Key(key, None)


@asynccontextmanager
async def screen(
    server: Server,
    who: str,
    part: str,
    *,
    target: str = "outline",
    size: tuple[int, int] = (80, 24),
    store: Path | str = ":memory:",
    **client: Any,
) -> AsyncIterator[Screen]:
    """An application with a client of its own, both ended with the block."""
    async with of(server, who, part, store=store, **client) as opened:
        app = OutlineApp(opened, partition=part, target=target, client_id=who)
        async with app.run_test(size=size, notifications=True) as pilot:
            yield Screen(app, pilot)
