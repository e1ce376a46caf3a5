"""Slow handshakes, many idle connections, and connections that come and go: what they take is given back."""

from __future__ import annotations

import asyncio
import resource
import time
from pathlib import Path

import pytest

from tests.behaviour.server.crowds import (
    Client,
    churn,
    descriptors,
    front_pid,
    hold,
    in_turns,
    memory_kib,
    settled_front,
)
from tests.behaviour.server.frames import UPGRADE
from tests.behaviour.server.harness import Server, running, set_event
from tests.behaviour.server.pressure import private_kib
from tests.waiting import PATIENCE_S, until

BASELINE_SLACK_KIB = 4096
"""What an allocator keeps of what it had."""


def slow_handshakes(data: Path, count: int, *, handshake_s: float, within: float) -> None:
    """`count` sockets that never connect, a third of each kind; clients are served while they hang.

    `within`: how much more memory than an equal crowd before them they may leave.
    """
    with running(
        data, "--access-default", "allow", "--handshake-timeout-s", f"{handshake_s:g}", "--close-grace-s", "1"
    ) as server:
        asyncio.run(_slow(server, count, handshake_s))
        settled_front(server, 0)
        before, open_before = memory_kib(server), descriptors(front_pid(server))
        asyncio.run(_slow(server, count, handshake_s))
        settled_front(server, 0)
        assert descriptors(front_pid(server)) <= open_before
        after = memory_kib(server)
        assert after <= before * (1 + within) + BASELINE_SLACK_KIB, f"{before} KiB before, {after} KiB after"


async def _slow(server: Server, count: int, handshake_s: float) -> None:
    ended: list[int | None] = []
    kinds = (b"", UPGRADE[:-4], UPGRADE)

    async def one(number: int) -> None:
        first = kinds[number % 3]
        client = await Client.open(server.url, first)
        if first == UPGRADE[:-4] and number % 2:
            await _byte_by_byte(client, handshake_s)
        ended.append(await client.close_code())
        await client.end()

    async def served() -> int:
        """Clients that connect, write and read while the others hang."""
        done = 0
        while len(ended) < count:
            await asyncio.to_thread(_use, server, f"served-{time.monotonic_ns()}")
            done += 1
        return done

    opening = in_turns(((lambda number=number: one(number)) for number in range(count)), at_once=count)  # type: ignore[misc]
    async with asyncio.timeout(PATIENCE_S * 2 + handshake_s):
        uses, _ = await asyncio.gather(served(), opening)
    assert uses > 0
    assert ended.count(4004) == len(range(2, count, 3))  # the others have no WebSocket to be told by
    assert set(ended) == {4004, None}


async def _byte_by_byte(client: Client, handshake_s: float) -> None:
    """The last header goes on and on."""
    try:
        for _ in range(10_000):
            client.writer.write(b"x")
            await client.writer.drain()
            await asyncio.sleep(handshake_s / 10)
    except ConnectionError:
        pass


def _use(server: Server, who: str) -> None:
    with server.client(who) as peer:
        peer.commit([who], set_event("x", 1))
        assert len(peer.history([who])) == 1


@pytest.mark.req("LIM-05", "LIM-07", "CONN-10")
def test_slow_handshakes_end_and_hold_up_nobody(tmp_path: Path) -> None:
    slow_handshakes(tmp_path / "data", 200, handshake_s=1.5, within=0.25)


@pytest.mark.req("LIM-05")
def test_sockets_without_an_upgrade_count_and_the_oldest_go_first(tmp_path: Path) -> None:
    """However many are held, there is room for who upgrades, and the front's descriptors stay bounded."""
    with running(tmp_path / "data", "--access-default", "allow", "--max-connections", "150") as server:

        async def scenario() -> None:
            idle = [await Client.open(server.url, b"") for _ in range(400)]
            await asyncio.to_thread(_use, server, "served")
            assert server.metric("unisono_openings") <= 150
            assert server.metric("unisono_openings_cut_total") >= 250
            assert await idle[0].reader.read(1) == b""
            held = await hold(server, 140, "held")
            assert server.metric("unisono_openings") <= 128
            await asyncio.to_thread(_use, server, "served later")
            for client in (*idle, *held):
                await client.vanish()

        asyncio.run(scenario())
        settled_front(server, 0)


@pytest.mark.req("LIM-05", "CONN-10")
def test_who_finds_no_room_is_told_so_and_further_ones_get_503(tmp_path: Path) -> None:
    with running(
        tmp_path / "data", "--access-default", "allow", "--max-connections", "5", "--close-grace-s", "60"
    ) as server:

        async def scenario() -> None:
            held = await hold(server, 5, "held")
            refused = [await Client.open(server.url) for _ in range(128)]
            assert {await client.close_code() for client in refused} == {4006}
            with pytest.raises(AssertionError, match="503"):
                await Client.open(server.url)
            for client in (*held, *refused):
                await client.vanish()

        asyncio.run(scenario())
        settled_front(server, 0)


@pytest.mark.req("LIM-05")
def test_the_limit_of_open_files_is_never_reached(tmp_path: Path) -> None:
    """Past it the event loop would try to accept again and again, and log each time."""

    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 500))

    with running(tmp_path / "data", "--access-default", "allow", preexec_fn=few_files) as server:

        async def scenario() -> None:
            idle = [await Client.open(server.url, b"") for _ in range(900)]
            await asyncio.to_thread(_use, server, "served")
            held = await hold(server, 180, "held")
            assert descriptors(front_pid(server)) < 500
            for client in (*idle, *held):
                await client.vanish()

        asyncio.run(scenario())
        settled_front(server, 0)
        log = server.log.read_text()
        assert "room for 180 connections, max_connections is 20000: the limit of open files is 500" in log
        assert "Traceback" not in log


def load(data: Path, *, held: int, churned: int, within: float) -> None:
    """Idle connections twice, and between them ones that come and go: the front is as after the first time."""
    with running(data, "--access-default", "allow", "--max-connections", "20000") as server:
        pid = front_pid(server)
        _use(server, "first")
        settled_front(server, 0)
        open_before = descriptors(pid)

        async def idle(name: str) -> None:
            clients = await hold(server, held, name)
            settled_front(server, held)
            assert descriptors(pid) >= open_before + held
            for client in clients[:20]:
                await client.say("heartbeat", {})
                assert b"heartbeat_ack" in (await client.hear())[1]
            await in_turns(client.leave for client in clients)

        asyncio.run(idle("first"))
        settled_front(server, 0)
        assert descriptors(pid) <= open_before
        before = memory_kib(server)
        asyncio.run(churn(server, churned, "churned"))
        asyncio.run(idle("second"))
        settled_front(server, 0)
        assert descriptors(pid) <= open_before
        after = memory_kib(server)
        assert after <= before * (1 + within) + BASELINE_SLACK_KIB, f"{before} KiB before, {after} KiB after"


@pytest.mark.req("LIM-05")
def test_connections_that_are_held_and_churned_leave_nothing(tmp_path: Path) -> None:
    load(tmp_path / "data", held=200, churned=1_000, within=0.25)


@pytest.mark.req("LIM-05")
def test_memory_goes_back_to_the_system_when_a_crowd_has_left(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--access-default", "allow") as server:
        pid = front_pid(server)

        async def crowd(size: int) -> None:
            clients = [await Client.open(server.url) for _ in range(size)]
            settled_front(server, len(clients))
            for client in clients:
                await client.vanish()

        asyncio.run(crowd(50))
        settled_front(server, 0)
        before = private_kib(pid)
        asyncio.run(crowd(1_500))
        settled_front(server, 0)
        until(
            lambda: private_kib(pid) < before + 1_500 * 2, lambda: f"{before} KiB, now {private_kib(pid)} KiB"
        )
