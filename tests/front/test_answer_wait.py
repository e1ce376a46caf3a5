"""Waiting for the answer to a lone request: without sleep for a short time, and only while answers come soon."""

from __future__ import annotations

import asyncio

from unisono.front.answer_wait import LONE_MIN, SPIN_S, TRY_EVERY, AnswerWait
from unisono.front.backpressure import Queued

CONN = 7


class Waiting:
    """A wait whose clock stands still; `turns` counts passes of its loop, each of which reads the clock once."""

    def __init__(self) -> None:
        self.queued = Queued(100, 10_000)
        self.now = 1.0
        self.readings = 0
        self.wait = AnswerWait(asyncio.get_running_loop(), self.queued, self._read)
        self.wait.lone = LONE_MIN

    def _read(self) -> float:
        self.readings += 1
        return self.now

    def submit(self, conn: int = CONN) -> None:
        self.queued.add(conn, 1, 10)
        if self.queued.items == 1:
            self.wait.begin(1)

    async def turns(self) -> int:
        """How often it turned in ten passes of the event loop."""
        before = self.readings
        for _ in range(10):
            await asyncio.sleep(0)
        return self.readings - before

    async def too_long(self) -> None:
        """A lone request whose answer takes longer than it is waited for."""
        self.submit()
        self.now += 2 * SPIN_S
        await self.turns()
        self.queued.answered(CONN)


def test_the_loop_turns_until_the_answer() -> None:
    async def scenario() -> None:
        waiting = Waiting()
        waiting.submit()
        assert await waiting.turns() >= 10
        waiting.queued.answered(CONN)
        await asyncio.sleep(0)
        assert await waiting.turns() == 0

    asyncio.run(scenario())


def test_a_request_that_is_alone_by_chance_is_not_waited_for() -> None:
    async def scenario() -> None:
        waiting = Waiting()
        waiting.wait.lone = 0
        for _ in range(LONE_MIN - 1):
            waiting.submit()
            assert await waiting.turns() == 0
            waiting.queued.answered(CONN)
        waiting.submit()
        assert await waiting.turns() >= 10

    asyncio.run(scenario())


def test_it_ends_with_its_time() -> None:
    async def scenario() -> None:
        waiting = Waiting()
        waiting.submit()
        waiting.now += SPIN_S
        await asyncio.sleep(0)
        assert await waiting.turns() == 0

    asyncio.run(scenario())


def test_it_ends_with_the_request_of_another_connection() -> None:
    async def scenario() -> None:
        waiting = Waiting()
        waiting.submit()
        waiting.submit(CONN + 1)
        await asyncio.sleep(0)
        assert await waiting.turns() == 0

    asyncio.run(scenario())


def test_after_a_long_wait_few_requests_try_again() -> None:
    async def scenario() -> None:
        waiting = Waiting()
        await waiting.too_long()
        tried = 0
        for _ in range(3 * TRY_EVERY):
            before = waiting.readings
            await waiting.too_long()
            tried += waiting.readings > before
        assert tried == 3

    asyncio.run(scenario())


def test_a_try_that_is_answered_soon_begins_again() -> None:
    async def scenario() -> None:
        waiting = Waiting()
        await waiting.too_long()
        for _ in range(TRY_EVERY):
            waiting.submit()
            await asyncio.sleep(0)
            waiting.queued.answered(CONN)
            await asyncio.sleep(0)
        waiting.submit()
        assert await waiting.turns() >= 10

    asyncio.run(scenario())
