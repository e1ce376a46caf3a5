"""A front whose log was lost and found again before it was asked for the first time."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from tests.client.running import until
from unisono.config import Settings
from unisono.front.access import Access
from unisono.front.auth.sources import SharedSecret
from unisono.front.auth.verify import Verifier
from unisono.front.server import Front
from unisono.ipc.channel import Channel, frame, socket_pair
from unisono.ipc.messages import LogFailed, Message, Offer, Ready
from unisono.node.start import listen


@pytest.mark.req("DUR-04")
def test_a_front_opens_its_doors_once() -> None:
    async def start() -> list[Message]:
        verifier = Verifier(SharedSecret(b"x" * 40), issuer=None, audience=None, leeway_s=0)
        front = Front(0, Settings(), verifier, Access(None, "allow"))
        pairs = [socket_pair() for _ in range(3)]
        (authority, _, node), ends = zip(*pairs, strict=True)
        with closing(authority), closing(pairs[1][0]), closing(node):
            offer = Offer(0, None, {"compatibility": ("set",)})
            authority.sendall(frame([offer, LogFailed("out of reach", recovering=True), offer]))
            listening = listen("127.0.0.1", 0, 1)
            await front.start(authority=ends[0], reader=ends[1], node=ends[2], listening=listening)
            await until(lambda: front.offer is not None)
            await asyncio.sleep(0.1)
            told = list(Channel(node).receive())
            for listener in front._listeners:
                listener.close()
            await front.close()
            return told

    assert asyncio.run(start()) == [Ready()]
