"""Sockets without an upgrade: what each of them costs, however many there are."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time

import pytest

from tests.client.running import until
from unisono.front.client_sockets import ClientSocket, Poll, PolledSocket
from unisono.front.openings import Listener, Openings, PendingUpgrade
from unisono.ipc.stats import Counters

LATE = 50


@pytest.mark.req("LIM-07", "LIM-05")
def test_a_late_socket_is_cut_at_the_same_cost_however_many_wait() -> None:
    """They become late one after the other, as they came."""

    async def best_s(waiting: int) -> float:
        loop = asyncio.get_running_loop()
        poll, nobody = Poll(loop), socket.socket()
        openings = Openings(loop, 3600.0, Counters(), lambda: 100_000, lambda: None)
        ends = [socket.socketpair() for _ in range(LATE)]
        late = [ClientSocket(ours, ours.fileno(), poll) for ours, _ in ends]
        for each in late:
            each.protocol = PendingUpgrade(each, lambda *_: None, openings)
            poll.add(each.descriptor, each)
            openings.add(each)
        for _ in range(waiting):
            openings.add(ClientSocket(nobody, -1, poll))
        best = 1.0
        for each in late:
            openings._sockets[each] = 0.0
            began = time.perf_counter()
            openings._cut_late()
            best = min(best, time.perf_counter() - began)
        assert len(openings) == waiting
        openings.close()
        poll.close()
        nobody.close()
        for _, theirs in ends:
            assert theirs.recv(1) == b""
            theirs.close()
        return best

    async def scenario() -> tuple[float, float]:
        return await best_s(10), await best_s(20_000)

    few, many = asyncio.run(scenario())
    assert many < 10 * few


class FullPoll(Poll):
    """Finds a few times that its user watches too many sockets."""

    failures = 0

    def add(self, descriptor: int, polled: PolledSocket) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().add(descriptor, polled)


@pytest.mark.req("ERR-03", "LIM-05")
def test_a_socket_that_cannot_be_watched_does_not_end_the_listening(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        poll, listening = FullPoll(loop), socket.create_server(("127.0.0.1", 0))
        openings = Openings(loop, 3600.0, Counters(), lambda: 10, lambda: None)
        listener = Listener(listening, poll, lambda *_: None, openings)
        poll.failures = 2  # the second is the listening socket's own, when it goes on
        with socket.create_connection(listening.getsockname()) as refused:
            refused.setblocking(False)
            assert await loop.sock_recv(refused, 1) == b""
        with socket.create_connection(listening.getsockname()):
            await until(lambda: len(openings) == 1)
        await until(lambda: len(openings) == 0)
        listener.close()
        openings.close()
        poll.close()

    asyncio.run(scenario())
    assert "socket not accepted: No space left on device" in caplog.text
