"""The asynchronous end of a channel: whoever gives it up closes it, and both sides learn of it."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from unisono.ipc import link as links
from unisono.ipc.channel import FRAME_BYTES_MAX, frame, socket_pair
from unisono.ipc.link import Link
from unisono.ipc.messages import LogFailed, Message


class Ends:
    """A link, and the bare socket at its other end."""

    def __init__(self) -> None:
        self.inside, self.outside = socket_pair()
        self.received: list[Message] = []
        self.lost = asyncio.Event()

    async def open(self) -> Link:
        return await Link.open(self.inside, "reader", self.received.append, self.lost.set)

    async def expect_end(self) -> None:
        await asyncio.wait_for(self.lost.wait(), 10)
        self.outside.settimeout(10)
        while self.outside.recv(1 << 20):
            pass
        self.outside.close()


@pytest.mark.req("LIM-05")
@pytest.mark.parametrize("garbage", [struct.pack("!I", FRAME_BYTES_MAX + 1), b"\x00\x00\x00\x03abc"])
def test_what_is_no_frame_ends_the_channel_on_both_sides(garbage: bytes) -> None:
    async def scenario() -> None:
        ends = Ends()
        await ends.open()
        ends.outside.sendall(frame([LogFailed("first")]) + garbage)
        await ends.expect_end()
        assert ends.received == [LogFailed("first")]

    asyncio.run(scenario())


@pytest.mark.req("LIM-05")
def test_a_peer_that_takes_nothing_while_more_comes_together_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "UNSENT_BYTES_MAX", 1 << 20)

    async def scenario() -> None:
        ends = Ends()
        ends.outside.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        link = await ends.open()
        for _ in range(100):
            link.send(LogFailed("x" * 100_000))
            await asyncio.sleep(0)
            if ends.lost.is_set():
                break
        await ends.expect_end()

    asyncio.run(scenario())
