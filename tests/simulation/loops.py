# mypy: disable-error-code="override"
"""An event loop whose time and order belong to the simulation."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from itertools import count
from typing import Any


class SimulatedLoop(asyncio.AbstractEventLoop):
    """What the front uses of an event loop. The simulation runs its passes."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count()
        self._errors: list[dict[str, Any]] = []

    def time(self) -> float:
        return self._now()

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, **options)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self._errors.append(context)

    # -- for the simulation ----------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self._ready)

    def next_timer(self) -> float | None:
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def run_pass(self) -> None:
        """What one pass of an event loop does: timers that are due, then everything that was ready.

        An event loop logs what a callback raises and goes on, so nobody would know: here it ends the run.
        """
        while (due := self.next_timer()) is not None and due <= self.time():
            self._ready.append(heapq.heappop(self._timers)[2])
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            if not handle.cancelled():
                self.run(handle._run)
        if self._errors:
            context = self._errors.pop(0)
            raise AssertionError(f"the front: {context['message']}") from context.get("exception")

    def run(self, call: Callable[[], Any]) -> Any:
        """Call something as if from within the loop."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            return call()
        finally:
            asyncio._set_running_loop(before)


def simulated_loop(now: Callable[[], float]) -> SimulatedLoop:
    """The interface has fifty more methods, which nobody calls here."""
    return SimulatedLoop(now)  # type: ignore[abstract]
