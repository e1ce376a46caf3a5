"""Deadlines of all connections in one heap, behind one timer of the event loop."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from itertools import count
from typing import Final

log = logging.getLogger("unisono.front")

MAX_CANCELLED: Final = 64
"""Cancelled entries that may stay in the heap whatever its size; more than that, at most as many as live ones."""


class Timer:
    """One deadline; `call` is None once it has passed or was cancelled."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[float], float | None]) -> None:
        self.call: Callable[[float], float | None] | None = call


class Timers:
    """Calls each callback at its time.

    A callback gets the time and returns None when it is done, or its next time: a heartbeat only changes a number,
    and the heap is updated when the old entry is due. A cancelled timer has no reference to its callback.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = count()
        self._cancelled = 0
        self._handle: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, when: float, call: Callable[[float], float | None]) -> Timer:
        """`when` is in the event loop's time."""
        timer = Timer(call)
        heapq.heappush(self._heap, (when, next(self._order), timer))
        if self._heap[0][2] is timer:
            self._arm()
        return timer

    def cancel(self, timer: Timer) -> None:
        if timer.call is None:
            return
        timer.call = None
        self._cancelled += 1
        if self._cancelled > max(MAX_CANCELLED, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if entry[2].call is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._heap.clear()
        self._cancelled = 0

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_at(self._heap[0][0], self._fire) if self._heap else None

    def _fire(self) -> None:
        now = self._loop.time()
        while self._heap and self._heap[0][0] <= now:
            _, _, timer = heapq.heappop(self._heap)
            call = timer.call
            if call is None:
                self._cancelled -= 1
                continue
            try:
                again = call(now)
            except Exception:  # one connection's error must not stop the timers of the others (ERR-03)
                log.exception("timer callback failed")
                again = None
            if timer.call is None:
                self._cancelled -= 1  # it cancelled itself
            elif again is None:
                timer.call = None
            else:
                heapq.heappush(self._heap, (again, next(self._order), timer))
        self._arm()
