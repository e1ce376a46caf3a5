"""A new token before the old one ends: nobody is offline for a moment."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.behaviour.server.harness import Server
from tests.client.running import WAIT_S, asynchronous, of, until
from unisono.client import Options, Phase
from unisono.client.net.renewal import renew_in_s

BRIEF = Options(renew_before_s=2.0, backoff_base_s=0.02, backoff_cap_s=0.2)


@pytest.mark.req("CLIENT-16", "AUTH-04", "CONN-05")
@asynchronous
async def test_a_client_outlives_its_tokens_without_being_offline(server: Server, part: str) -> None:
    a, b = f"{part}-a", f"{part}-b"
    asked: list[float] = []

    def token() -> str:
        asked.append(time.monotonic())
        return server.token(a, ttl_s=3)

    async with of(server, a, part, token=token, options=BRIEF) as ann, of(server, b, part) as ben:
        await ann.caught_up(WAIT_S)
        await ben.caught_up(WAIT_S)
        phases: set[Phase] = set()

        async def watch() -> None:
            async for status in ann.statuses():
                phases.add(status.phase)

        watching = asyncio.create_task(watch())
        number = 0
        while len(asked) < 4:  # three renewals
            number += 1
            await ben.set("n", number)
            draft = await ann.set("m", number)
            await draft.settled(WAIT_S)
            await asyncio.sleep(0.05)
        await until(lambda: ann.view() == {"n": number, "m": number})
        watching.cancel()
        assert phases <= {Phase.LIVE, Phase.SYNCING}
        assert ann.status.stopped is None
        assert ben.view() == ann.view()


@pytest.mark.req("CLIENT-08")
@asynchronous
async def test_no_newer_token_is_no_reason_to_stop(server: Server, part: str) -> None:
    """The function fails, or gives the same again: the old one serves to its end, and then a new one is asked for."""
    good = [server.token(f"{part}-a", ttl_s=2), server.token(f"{part}-a", ttl_s=60)]
    asked = 0

    def token() -> str:
        nonlocal asked
        asked += 1
        if asked == 1:
            return good[0]
        if asked == 2:
            raise OSError("the login service is away")
        return good[0] if asked == 3 else good[1]

    async with of(server, f"{part}-a", part, token=token, options=BRIEF) as ann:
        await ann.caught_up(WAIT_S)
        await until(lambda: asked >= 4)
        await ann.caught_up(WAIT_S)
        draft = await ann.set("a", 1)
        await draft.settled(WAIT_S)


@asynchronous
async def test_a_fixed_token_is_not_renewed(server: Server, part: str) -> None:
    async with of(server, part, part, token=server.token(part, ttl_s=1.5), options=BRIEF) as ann:
        await ann.caught_up(WAIT_S)
        await until(lambda: ann.status.stopped is not None)
        assert "auth_failed" in str(ann.status.stopped)


@asynchronous
async def test_a_pause_ends_a_renewal(server: Server, part: str) -> None:
    token = lambda: server.token(part, ttl_s=2)  # noqa: E731
    async with of(server, part, part, token=token, options=BRIEF) as ann:
        for _ in range(5):
            await ann.caught_up(WAIT_S)
            await asyncio.sleep(0.4)
            await ann.pause()
            assert ann.status.phase is Phase.OFFLINE
            await ann.resume()
        await ann.caught_up(WAIT_S)


def test_when_a_token_is_replaced(server: Server) -> None:
    now = time.time()
    assert renew_in_s("no token", 30, now) is None
    day = server.token("a", ttl_s=86_400)
    assert renew_in_s(day, 30, now) == pytest.approx(86_370, abs=2)
    assert renew_in_s(server.token("a", ttl_s=30), 30, now) == pytest.approx(20, abs=2)
    assert renew_in_s(server.token("a", ttl_s=-5), 30, now) == 0.0
