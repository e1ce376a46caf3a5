"""The asynchronous end of a channel: whoever gives it up closes it, and both sides learn of it."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from unisono.ipc import link as links
from unisono.ipc.channel import FRAME_BYTES_MAX, Unframer, frame, socket_pair
from unisono.ipc.link import Link
from unisono.ipc.messages import AskHead, LogFailed, Message, Release


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


# -- messages that nobody waits for --------------------------------------------------------------------------


def arrived(ends: Ends) -> list[Message]:
    """The one frame that has come out at the other end; empty while there is none."""
    ends.outside.setblocking(False)
    try:
        data = ends.outside.recv(1 << 20)
    except BlockingIOError:
        return []
    assert struct.unpack_from("!I", data)[0] == len(data) - 4, "not one frame"
    return list(Unframer().feed(data))


def test_what_nobody_waits_for_goes_with_the_next_message_and_in_order() -> None:
    async def scenario() -> None:
        ends = Ends()
        link = await ends.open()
        link.send_later(Release(1))
        await asyncio.sleep(0)
        assert arrived(ends) == []
        link.send(AskHead(2))
        link.send_later(Release(3))
        await asyncio.sleep(0)
        assert arrived(ends) == [Release(1), AskHead(2), Release(3)]
        await asyncio.sleep(2 * links.LATER_S)
        assert arrived(ends) == []
        link.send_later(Release(4))
        ends.outside.settimeout(10)
        data = await asyncio.to_thread(ends.outside.recv, 1 << 20)
        assert list(Unframer().feed(data)) == [Release(4)]
        link.close()
        await ends.expect_end()

    asyncio.run(scenario())


@pytest.mark.parametrize("closed", [False, True])
def test_what_nobody_waits_for_goes_alone_in_the_end(closed: bool) -> None:
    async def scenario() -> None:
        ends = Ends()
        link = await ends.open()
        link.send_later(Release(1))
        link.send_later(Release(2))
        if closed:
            link.close()
        ends.outside.settimeout(10)
        data = await asyncio.to_thread(ends.outside.recv, 1 << 20)
        assert list(Unframer().feed(data)) == [Release(1), Release(2)]
        link.close()
        await ends.expect_end()

    asyncio.run(scenario())


@pytest.mark.req("LIM-05")
def test_what_nobody_waits_for_is_bounded() -> None:
    async def scenario() -> None:
        ends = Ends()
        link = await ends.open()
        releases = [Release(number) for number in range(links.LATER_MESSAGES_MAX)]
        for release in releases[:-1]:
            link.send_later(release)
        assert arrived(ends) == []
        link.send_later(releases[-1])
        assert arrived(ends) == releases
        link.close()
        await ends.expect_end()

    asyncio.run(scenario())
