"""Waits for the answer to a lone request without sleeping.

To sleep and be woken takes longer than all else that a front does for a request. With several clients at work the
front has something to do meanwhile; with one it would sleep each time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from unisono.front.backpressure import Queued

SPIN_S: Final = 0.0006
"""How long at most: an answer takes one sync of a disk, which takes about 0.1 ms on a fast one. On a slow disk a
wake-up is a small part of the wait, and nothing is gained."""

TRY_EVERY: Final = 64
"""Where the last wait was too long, one of so many lone requests finds out whether answers come sooner now."""


LONE_MIN: Final = 8
"""So many requests in a row without another beside them: one client is at work. Among several each is alone now and
then, and there the authority and the clients need the cores."""


class AnswerWait:
    """Keeps the event loop turning while the authority works on the only request of this front.

    Each turn serves whatever else has arrived. It ends with the answer, with the next request or after SPIN_S, and
    where it last ended without an answer it does not begin: an idle front sleeps, and so does one with a slow disk.
    `lone`: requests in a row that were alone; whoever hands over another one sets it to 0.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        queued: Queued,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now` has a finer resolution than the time of the loop."""
        self._loop = loop
        self._queued = queued
        self._now = now
        self.lone = 0
        self._items = 0
        self._until = 0.0
        self._turning = False
        self._too_long = 0
        """Lone requests since a wait was too long; 0 when the last was not."""

    def begin(self, items: int) -> None:
        """A request of so many items was handed over, and there is no other without an answer."""
        self.lone += 1
        if self.lone < LONE_MIN:
            return
        if self._too_long:
            self._too_long += 1
            if self._too_long % TRY_EVERY:
                return
        self._items = items
        self._until = self._now() + SPIN_S
        if not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        items = self._queued.items
        if items == self._items and self._now() < self._until:
            self._loop.call_soon(self._turn)
            return
        self._turning = False
        if items == 0:
            self._too_long = 0
        elif items == self._items:
            self._too_long = 1
