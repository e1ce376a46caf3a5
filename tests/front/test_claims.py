"""Which connection has a client_id: asked of the authority, or settled by the only front."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps

import pytest

from unisono.front.claims import Claims
from unisono.ipc.channel import Channel, socket_pair
from unisono.ipc.link import Link
from unisono.ipc.messages import Claim, Claimed, Message, Offer, Release


class Front:
    """Claims with a real link, whose other end is the authority's."""

    def __init__(self) -> None:
        self.claims = Claims()
        self.said: list[str] = []

    async def open(self, *, alone: bool, head: int) -> None:
        inside, outside = socket_pair()
        self.authority = Channel(outside, "front 0")
        self.claims.authority = await Link.open(inside, "authority", lambda _: None, lambda: None)
        self.claims.offered(Offer(head, None, {}, sole_front=alone))

    def claim(self, conn: int, client_id: str) -> None:
        self.claims.claim(
            conn,
            client_id,
            lambda older: self.said.append(f"{older} replaced"),
            lambda head: self.said.append(f"{conn} claimed at {head}"),
        )

    def told(self) -> list[Message]:
        """What the authority has been told by now."""
        self.claims.authority._flush()
        return self.authority.receive()

    def close(self) -> None:
        self.claims.authority.close()
        self.authority.close()


def on_a_loop(test: Callable[[Front], Coroutine[None, None, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        async def scenario() -> None:
            front = Front()
            await test(front)
            front.close()

        asyncio.run(scenario())

    del run.__wrapped__  # pytest would ask for a fixture
    return run


@pytest.mark.req("CONN-05")
@on_a_loop
async def test_the_only_front_replaces_the_older_connection_before_it_answers(front: Front) -> None:
    await front.open(alone=True, head=7)
    front.claim(1, "ann")
    front.claims.head = 9
    front.claim(2, "ann")
    front.claim(3, "bob")
    assert front.said == ["1 claimed at 7", "1 replaced", "2 claimed at 9", "3 claimed at 9"]
    assert front.told() == [Claim(1, "ann"), Claim(2, "ann"), Claim(3, "bob")]


@pytest.mark.req("CONN-05")
@on_a_loop
async def test_the_end_of_a_replaced_connection_does_not_end_the_claim_of_the_newer(front: Front) -> None:
    await front.open(alone=True, head=0)
    front.claim(1, "ann")
    front.claim(2, "ann")
    front.claims.release(1, "ann")
    front.claim(3, "ann")
    assert "2 replaced" in front.said
    front.claims.release(3, "ann")
    front.claim(4, "ann")
    assert front.said[-1] == "4 claimed at 0"
    assert "3 replaced" not in front.said
    assert front.told()[-2:] == [Release(3), Claim(4, "ann")]


@pytest.mark.req("LIM-05")
@on_a_loop
async def test_nothing_stays_of_connections_that_have_ended(front: Front) -> None:
    await front.open(alone=True, head=0)
    for number in range(50):
        front.claim(number, f"client {number % 7}")
    for number in range(50):
        front.claims.release(number, f"client {number % 7}")
    assert not front.claims._newest


@pytest.mark.req("CONN-05")
@on_a_loop
async def test_one_of_several_fronts_waits_for_the_authority(front: Front) -> None:
    await front.open(alone=False, head=7)
    front.claim(1, "ann")
    front.claim(2, "ann")
    front.claim(3, "bob")
    front.claims.forget(3)
    assert front.said == []
    assert front.told() == [Claim(1, "ann"), Claim(2, "ann"), Claim(3, "bob")]
    for conn in (1, 2, 3, 2):
        front.claims.claimed(Claimed(conn, 8))
    assert front.said == ["1 claimed at 8", "2 claimed at 8"]
    front.claim(4, "eve")
    front.claims.drop_requests()
    front.claims.claimed(Claimed(4, 9))
    assert len(front.said) == 2
