"""Counting in a generator: what is answered between the end of the warm-up and the end of the run."""

from __future__ import annotations

import asyncio
import time
from typing import cast

from benchmarks.generators.order import Counted


class Tally:
    """Shared by the connections of one process."""

    def __init__(self, items_max: int = 0) -> None:
        self.running = False
        self._items_max = items_max
        self._enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.items = 0
        self.latencies: list[float] = []
        self._started = 0.0
        self._cpu = 0.0
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Set by the first connection that is refused or lost; the run ends with it."""

    def start(self) -> None:
        """Forget the warm-up."""
        self.items = 0
        self.latencies.clear()
        self._started, self._cpu = time.perf_counter(), time.process_time()

    def fail(self, text: str) -> None:
        if not self.failure.done():
            self.failure.set_exception(ConnectionError(text))

    def count(self, items: int) -> None:
        self.items += items
        if self._items_max and self.items >= self._items_max and not self._enough.done():
            self.running = False
            self._enough.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Pass the time, unless enough is counted before, or a connection fails."""
        await asyncio.wait([self.failure, self._enough], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if self.failure.done():
            self.failure.result()

    def result(self) -> Counted:
        elapsed = time.perf_counter() - self._started
        cpu = time.process_time() - self._cpu
        return Counted(self.items, elapsed, cpu, sorted(round(one * 1e6) for one in self.latencies))


class LoopConnection(asyncio.Protocol):
    """One connection in a closed loop: the next request follows the answer to the last."""

    transport: asyncio.Transport

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sent_at = 0.0
        self._closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's own is none by inheritance

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closing:
            self.fail(f"the server closed the connection: {exc or 'end of file'}")

    def fail(self, text: str) -> None:
        if not self.opened.done():
            self.opened.set_exception(ConnectionError(text))
        self.tally.fail(text)

    def begin(self) -> None:
        self._sent_at = time.perf_counter()
        self.transport.write(self.request())

    def request(self) -> bytes:
        """The bytes of the next request."""
        raise NotImplementedError

    def answered(self, items: int) -> None:
        tally = self.tally
        tally.count(items)
        tally.latencies.append(time.perf_counter() - self._sent_at)
        if tally.running:
            self.begin()

    def close(self) -> None:
        self._closing = True
        self.transport.close()
