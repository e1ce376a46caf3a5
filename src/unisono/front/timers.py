"""Deadlines of all connections in one heap, behind one timer of the event loop."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from itertools import count

log = logging.getLogger("unisono.front")


class Timers:
    """Calls back at a time, or later if the callback asks for more.

    A callback gets the time and returns None when it is done, or its next time: a heartbeat only moves a
    number, and the heap learns of it when the old entry comes up. Entries of dead connections say None then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[float, int, Callable[[float], float | None]]] = []
        self._order = count()
        self._handle: asyncio.TimerHandle | None = None

    def at(self, when: float, call: Callable[[float], float | None]) -> None:
        """`when` is in the event loop's time."""
        heapq.heappush(self._heap, (when, next(self._order), call))
        if self._heap[0][0] == when:
            self._arm()

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._heap.clear()

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_at(self._heap[0][0], self._fire) if self._heap else None

    def _fire(self) -> None:
        now = self._loop.time()
        while self._heap and self._heap[0][0] <= now:
            _, _, call = heapq.heappop(self._heap)
            try:
                again = call(now)
            except Exception:  # one connection's trouble must not stop everybody's timers (ERR-03)
                log.exception("a timer failed")
                continue
            if again is not None:
                heapq.heappush(self._heap, (again, next(self._order), call))
        self._arm()
