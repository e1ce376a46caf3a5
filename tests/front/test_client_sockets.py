"""Sockets of clients on both kinds of poll: order, the bound on what is unsent, and every way to end."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.client.running import until
from unisono.front.client_sockets import JOINED_BYTES, PASS_S, ClientSocket, Poll

pytestmark = pytest.mark.parametrize("of_the_loop", [False, True], ids=["epoll", "event loop"])


class Notes:
    """A protocol that notes what it is told; `fails` makes it raise at what it reads."""

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer
        self.read = b""
        self.told: list[str] = []
        self.fails = False

    def buffer_updated(self, nbytes: int) -> None:
        if self.fails:
            raise ValueError("on purpose")
        self.read += self._buffer[:nbytes]

    def pause_writing(self) -> None:
        self.told.append("full")

    def eof_received(self) -> None:
        self.told.append("end of its half")

    def connection_lost(self) -> None:
        self.told.append("lost")


Scenario = Callable[[ClientSocket, Notes, socket.socket], Awaitable[None]]


def play(scenario: Scenario, *, of_the_loop: bool) -> None:
    async def main() -> None:
        poll = Poll(asyncio.get_running_loop(), of_the_loop=of_the_loop)
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        one = ClientSocket(ours, ours.fileno(), poll)
        one.protocol = notes = Notes(poll.buffer)
        poll.add(one.descriptor, one)
        with ours, theirs:
            await scenario(one, notes, theirs)
            poll.close()
            await asyncio.sleep(0)
        assert notes.told.count("lost") == 1
        assert notes.told[-1] == "lost"
        assert not poll._sockets

    asyncio.run(main())


async def taken(theirs: socket.socket, size: int | None = None) -> bytes:
    """So many bytes, or all up to the end."""
    data, loop = b"", asyncio.get_running_loop()
    while size is None or len(data) < size:
        more = await loop.sock_recv(theirs, 1 << 20)
        if not more:
            break
        data += more
    return data


PARTS = [bytes([number]) * 40_000 for number in range(60)]


@pytest.mark.req("BCAST-04", "LIM-05")
def test_what_a_slow_client_takes_late_comes_in_order(of_the_loop: bool) -> None:
    async def scenario(one: ClientSocket, notes: Notes, theirs: socket.socket) -> None:
        one.max_unsent_bytes = 10_000_000
        for part in PARTS:
            one.write(part)
        unsent = one.unsent_bytes
        assert 0 < unsent <= sum(map(len, PARTS))
        assert await taken(theirs, sum(map(len, PARTS))) == b"".join(PARTS)
        await until(lambda: one.unsent_bytes == 0)
        theirs.send(b"hello")
        await until(lambda: notes.read == b"hello")
        one.write(b"again")
        assert await taken(theirs, 5) == b"again"
        assert notes.told == []

    play(scenario, of_the_loop=of_the_loop)


@pytest.mark.req("BCAST-04", "LIM-05")
def test_a_client_that_takes_nothing_is_told_of(of_the_loop: bool) -> None:
    async def scenario(one: ClientSocket, notes: Notes, theirs: socket.socket) -> None:
        one.max_unsent_bytes = 100_000
        while not notes.told:
            one.write(PARTS[0])
        assert one.unsent_bytes <= 100_000 + len(PARTS[0])
        one.abort()
        one.write(b"too late")
        assert (one.unsent_bytes, notes.told) == (0, ["full"])
        await until(lambda: notes.told == ["full", "lost"])

    play(scenario, of_the_loop=of_the_loop)


@pytest.mark.req("LIM-05", "BCAST-03")
def test_short_writes_that_wait_take_little_more_than_their_bytes(of_the_loop: bool) -> None:
    async def scenario(one: ClientSocket, notes: Notes, theirs: socket.socket) -> None:
        one.max_unsent_bytes = 10_000_000
        while not one.unsent_bytes:
            one.write(PARTS[0])
        pongs = [b"%04d" % number for number in range(10_000)]
        for pong in pongs:
            one.write(pong)
        assert one._unsent is not None
        assert len(one._unsent) <= 2 + sum(map(len, pongs)) / JOINED_BYTES * 2
        sent = b""
        while len(sent) < 40_000 or not sent.endswith(pongs[-1]):
            sent += await taken(theirs, 1)
        assert sent.endswith(b"".join(pongs))
        await until(lambda: one.unsent_bytes == 0)

    play(scenario, of_the_loop=of_the_loop)


def test_a_close_waits_for_what_is_unsent_and_reads_nothing(of_the_loop: bool) -> None:
    async def scenario(one: ClientSocket, notes: Notes, theirs: socket.socket) -> None:
        one.max_unsent_bytes = 10_000_000
        for part in PARTS:
            one.write(part)
        one.close()
        one.close()
        one.write(b"too late")
        theirs.send(b"unread")
        assert await taken(theirs, sum(map(len, PARTS))) == b"".join(PARTS)
        await until(lambda: notes.told == ["lost"])
        assert notes.read == b""

    play(scenario, of_the_loop=of_the_loop)


def test_who_ends_its_half_still_gets_what_is_unsent(of_the_loop: bool) -> None:
    async def scenario(one: ClientSocket, notes: Notes, theirs: socket.socket) -> None:
        one.max_unsent_bytes = 10_000_000
        for part in PARTS:
            one.write(part)
        theirs.shutdown(socket.SHUT_WR)
        await until(lambda: notes.told == ["end of its half"])
        assert await taken(theirs) == b"".join(PARTS)
        await until(lambda: notes.told == ["end of its half", "lost"])

    play(scenario, of_the_loop=of_the_loop)


@pytest.mark.parametrize("unsent", [False, True])
def test_a_client_that_is_gone_is_noticed(of_the_loop: bool, unsent: bool) -> None:
    async def scenario(one: ClientSocket, notes: Notes, theirs: socket.socket) -> None:
        one.max_unsent_bytes = 10_000_000
        for part in PARTS if unsent else ():
            one.write(part)
        theirs.close()
        await until(lambda: notes.told[-1:] == ["lost"])
        one.write(b"too late")
        one.close()
        one.abort()

    play(scenario, of_the_loop=of_the_loop)


@pytest.mark.req("ERR-03")
def test_an_error_ends_only_the_socket_that_it_comes_from(
    of_the_loop: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(one: ClientSocket, notes: Notes, theirs: socket.socket) -> None:
        poll: Any = one._poll
        ours, other = socket.socketpair()
        with ours, other:
            beside = ClientSocket(ours, ours.fileno(), poll)
            beside.protocol = kept = Notes(poll.buffer)
            poll.add(beside.descriptor, beside)
            notes.fails = True
            theirs.send(b"x")
            other.send(b"y")
            await until(lambda: notes.told == ["lost"] and kept.read == b"y")
            beside.abort()

    play(scenario, of_the_loop=of_the_loop)
    assert "socket failed" in caplog.text


@pytest.mark.req("LIM-07")
def test_sockets_take_turns_with_each_other_and_with_the_loop(of_the_loop: bool) -> None:
    """Each read takes half of a pass, and there is always more to read."""
    sockets, rounds = 10, 3
    served: list[int] = []
    turns: list[int] = []

    class Slow(Notes):
        number = 0

        def buffer_updated(self, nbytes: int) -> None:
            super().buffer_updated(nbytes)
            served.append(self.number)
            time.sleep(PASS_S / 2)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        poll = Poll(loop, of_the_loop=of_the_loop)
        pairs = [socket.socketpair() for _ in range(sockets)]
        for number, (ours, theirs) in enumerate(pairs):
            one = ClientSocket(ours, ours.fileno(), poll)
            one.protocol = slow = Slow(poll.buffer)
            slow.number, one.read_bytes = number, 1
            poll.add(one.descriptor, one)
            theirs.send(b"x" * rounds)
        while len(served) < sockets * rounds:
            turns.append(len(served))
            await asyncio.sleep(0)
        poll.close()
        await asyncio.sleep(0)
        for pair in pairs:
            for end in pair:
                end.close()

    asyncio.run(main())
    for start in range(0, sockets * rounds, sockets):
        assert sorted(served[start : start + sockets]) == list(range(sockets)), (
            "nobody is served twice before all are"
        )
    if not of_the_loop:
        assert max(after - before for before, after in pairwise(turns)) <= 4
