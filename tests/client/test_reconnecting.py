"""Connections that end: cuts, servers that are lost, tokens that are refused, pauses. The client reconnects."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from pathlib import Path

import msgspec
import pytest

from tests.behaviour.server.harness import Server, running, running_by_window
from tests.client.proxy import Proxy
from tests.client.running import NOWHERE, QUICK, WAIT_S, Gate, asynchronous, client, of, until
from tests.waiting import in_a_window
from unisono.client import ClientStopped, Committed, Options, Phase, SyncClient
from unisono.client.net.connection import backoff_s


@pytest.mark.req("CLIENT-08")
@asynchronous
async def test_after_a_cut_the_client_is_back_by_itself(server: Server, part: str, who: str) -> None:
    with Proxy(server.url) as proxy:
        async with of(server, who, part, url=proxy.url) as one:
            await one.caught_up(WAIT_S)
            statuses = one.statuses()
            proxy.refusing = True
            proxy.cut()
            while (await anext(statuses)).phase is not Phase.OFFLINE:
                pass
            draft = await one.set("a", 1)
            await until(lambda: proxy.connections > 4)
            proxy.refusing = False
            assert isinstance(await draft.settled(WAIT_S), Committed)
            await until(lambda: one.status.phase is Phase.LIVE)


@pytest.mark.req("CLIENT-08")
def test_the_waits_double_up_to_a_cap_and_are_spread_out() -> None:
    options = Options(backoff_base_s=0.5, backoff_cap_s=30)
    assert [backoff_s(tries, options, 1.0) for tries in (0, 1, 2, 3, 6, 7, 8, 10_000)] == [
        0.5, 0.5, 1, 2, 16, 30, 30, 30
    ]  # fmt: skip
    assert backoff_s(5, options, 0.0) == 0
    assert backoff_s(5, options, 0.25) == 2


@pytest.mark.req("CLIENT-08")
@asynchronous
async def test_a_server_that_is_away_is_not_hammered(server: Server, part: str, who: str) -> None:
    with Proxy(server.url) as proxy:
        proxy.refusing = True
        options = Options(backoff_base_s=0.2, backoff_cap_s=0.4)
        async with of(server, who, part, url=proxy.url, options=options) as one:
            await until(lambda: proxy.connections > 0)
            await asyncio.sleep(1.0)
            assert proxy.connections <= 20
            proxy.refusing = False
            await one.caught_up(WAIT_S)


@pytest.mark.req("CLIENT-08", "CLIENT-04")
@asynchronous
async def test_a_cut_right_after_a_submit_commits_it_once(server: Server, part: str, who: str) -> None:
    with Proxy(server.url) as proxy:
        async with of(server, who, part, url=proxy.url) as one:
            await one.caught_up(WAIT_S)
            head = one.status.cursor
            for number in range(3):
                proxy.delay_s, proxy.cut_after_next_up = 0.0, True
                outcome = await (await one.set("n", number)).settled(WAIT_S)
                assert isinstance(outcome, Committed)
                await one.caught_up(WAIT_S)
            assert not proxy.cut_after_next_up
            with server.client(f"{who}-reader") as reader:
                assert len(reader.history([part], head)) == 3


@pytest.mark.req("CLIENT-08")
@asynchronous
async def test_a_new_token_is_asked_for_when_the_old_one_is_refused(
    server: Server, part: str, who: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "unisono.client")
    asked: list[float] = []

    async def token() -> str:
        assert asyncio.get_running_loop() is loop, "an async function runs on the program's own loop"
        asked.append(time.time())
        ttl_s = 1.0 if len(asked) == 1 else 3600
        return server.token(who, ttl_s=ttl_s) if len(asked) != 2 else "not a token at all"

    loop = asyncio.get_running_loop()
    unhurried = msgspec.structs.replace(QUICK, renew_before_s=0.0)
    with Proxy(server.url) as proxy:
        async with of(server, who, part, url=proxy.url, token=token, options=unhurried) as one:
            await one.caught_up(WAIT_S)
            proxy.cut()
            await until(lambda: proxy.connections >= 2)
            await until(lambda: len(asked) == 3)
            assert asked[1] > asked[0] + 0.9, "a token that works is kept"
            await until(lambda: one.status.phase is Phase.LIVE)
            assert one.status.last_error is None, "it is over"
    assert f"{who}: auth_failed: " in caplog.text
    assert "not a token" not in caplog.text


@asynchronous
async def test_a_token_function_that_fails_is_reported_and_asked_again(
    server: Server, part: str, who: str
) -> None:
    calls: list[int] = []
    open_gate = threading.Event()

    def token() -> str:
        calls.append(1)
        if not open_gate.is_set():
            raise OSError(f"the login page is down: {server.token(who)}")
        return server.token(who)

    async with of(server, who, part, token=token) as one:
        await until(lambda: len(calls) >= 3)
        assert one.status.last_error is not None
        assert one.status.last_error.code == "token_failed"
        assert "OSError: the login page is down: [token]" in one.status.last_error.message
        with pytest.raises(TimeoutError, match=r"token_failed: .* the login page is down") as late:
            await one.caught_up(0.01)
        assert server.token(who)[:20] not in str(late.value)
        open_gate.set()
        await one.caught_up(WAIT_S)
        assert one.status.last_error is None


@pytest.mark.req("CLIENT-09")
def test_heartbeats_keep_a_quiet_connection_open(tmp_path: Path, part: str, who: str) -> None:
    async def quiet(server: Server, window_s: float) -> None:
        quick = Options(heartbeat_interval_s=window_s / 6)
        with Proxy(server.url) as proxy:
            async with of(server, who, part, url=proxy.url, options=quick) as one:
                await one.caught_up(WAIT_S)
                await asyncio.sleep(2.5 * window_s)
                assert proxy.connections == 1
                assert one.status.phase is Phase.LIVE

    arguments = ("--access-default", "allow", "--heartbeat-timeout-s", "{}")
    with running_by_window(tmp_path, *arguments) as impatient:
        in_a_window(lambda window_s: asyncio.run(quiet(impatient(window_s), window_s)), 0.6, 3.0, 20.0)


@pytest.mark.req("CLIENT-09")
@asynchronous
async def test_a_dead_server_is_noticed(server: Server, part: str, who: str) -> None:
    quick = Options(backoff_base_s=0.02, heartbeat_interval_s=0.1, dead_after_s=0.4)
    with Proxy(server.url) as proxy:
        async with of(server, who, part, url=proxy.url, options=quick) as one:
            await one.caught_up(WAIT_S)
            proxy.deaf = True
            await until(lambda: one.status.phase is not Phase.LIVE)
            await until(lambda: one.status.last_error is not None)
            assert one.status.last_error is not None
            assert one.status.last_error.code == "dead_server"
            proxy.deaf = False
            await one.caught_up(WAIT_S)


@pytest.mark.req("DUR-08")
@asynchronous
async def test_a_server_that_lost_its_past_is_found_out(tmp_path: Path, part: str, who: str) -> None:
    arguments = ("--access-default", "allow")
    with Proxy("ws://127.0.0.1:9/sync") as proxy:
        with running(tmp_path / "first", *arguments) as first:
            proxy.aim(first.url)
            one = of(first, who, part, url=proxy.url, store=tmp_path / "c.db")
            async with one:
                for number in range(5):
                    await one.set(f"k{number}", number)
                await one.caught_up(WAIT_S)
        with running(tmp_path / "second", *arguments) as second:
            proxy.aim(second.url)
            with second.client("writer") as writer:
                writer.commit([part], {"type": "set", "payload": {"target": "new", "value": 1}})
            async with of(second, who, part, url=proxy.url, store=tmp_path / "c.db") as one:
                assert one.view() != {}
                await one.caught_up(WAIT_S)
                assert one.view() == {"new": 1}
                assert one.status.cursor == 1
                assert one.status.last_error is not None
                assert one.status.last_error.code == "log_changed"


@asynchronous
async def test_a_client_that_was_replaced_stops_and_does_not_fight(
    server: Server, part: str, who: str
) -> None:
    async with of(server, who, part) as older:
        await older.caught_up(WAIT_S)
        async with of(server, who, part) as newer:
            await newer.caught_up(WAIT_S)
            await until(lambda: older.status.stopped is not None)
            assert older.status.phase is Phase.OFFLINE
            await asyncio.sleep(0.3)
            assert newer.status.phase is Phase.LIVE
            assert (await older.set("still", "works")).id
            with pytest.raises(ClientStopped, match="took over"):
                await older.caught_up(WAIT_S)
        await older.resume()
        await older.caught_up(WAIT_S)
        assert older.status.stopped is None


@asynchronous
async def test_a_cut_at_every_kind_of_byte_loses_nothing(server: Server, part: str, who: str) -> None:
    """The proxy splits everything small and cuts each connection a little later than the one before."""
    async with of(server, f"{who}-writer", part) as writer:
        await asyncio.gather(*(writer.set(f"k{n}", n) for n in range(40)))
        await writer.caught_up(WAIT_S)
    with Proxy(server.url, seed=7) as proxy:
        proxy.chop = True
        proxy.cut_down_after = 100
        options = Options(backoff_base_s=0.001, backoff_cap_s=0.005, page_limit=50)
        async with of(server, who, part, url=proxy.url, options=options) as one:
            await one.set("mine", 1)
            while one.status.phase is not Phase.LIVE or one.status.pending:
                await _another(proxy, one)
                proxy.cut_down_after += 997
            assert one.view() == {f"k{n}": n for n in range(40)} | {"mine": 1}
        assert proxy.connections > 5


async def _another(proxy: Proxy, one: SyncClient) -> None:
    seen = proxy.connections
    await until(lambda: proxy.connections > seen or one.status.phase is Phase.LIVE)


@asynchronous
async def test_pause_and_resume(server: Server, part: str, who: str) -> None:
    async with of(server, who, part, options=QUICK) as one:
        await one.caught_up(WAIT_S)
        await one.pause()
        assert one.status.phase is Phase.OFFLINE
        draft = await one.set("a", 1)
        await asyncio.sleep(0.2)
        assert one.status.phase is Phase.OFFLINE
        await one.resume()
        assert isinstance(await draft.settled(WAIT_S), Committed)


@asynchronous
async def test_a_pause_ends_dialling_at_once(part: str, who: str) -> None:
    """A server that takes the call and says nothing would be waited for as long as `connect_timeout_s`."""
    called, gone = asyncio.Event(), asyncio.Event()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        called.set()
        assert await reader.read() == b""
        gone.set()
        writer.close()

    silent = await asyncio.start_server(take, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    patient = Options(connect_timeout_s=3600.0)
    async with silent, client(f"ws://127.0.0.1:{port}/sync", who, part, options=patient) as one:
        await called.wait()
        await asyncio.gather(one.pause(), one.pause())
        assert one.status.phase is Phase.OFFLINE
        await gone.wait()
        assert one.status.last_error is None
        called.clear()
        await one.resume()
        await called.wait()
        await one.pause()


@asynchronous
async def test_a_pause_ends_waiting_for_a_token_at_once(server: Server, part: str, who: str) -> None:
    gate = Gate(server.token(who))
    async with of(server, who, part, token=gate) as one:
        await until(lambda: one.status.phase is not Phase.OFFLINE)
        await one.pause()
        assert one.status.phase is Phase.OFFLINE
        assert one.status.last_error is None
        gate.open()
        await one.resume()
        await one.caught_up(WAIT_S)


@asynchronous
async def test_a_client_may_be_paused_before_it_dials_and_while_it_waits_to(part: str, who: str) -> None:
    async with client(NOWHERE, who, part, options=Options(backoff_base_s=3600.0)) as one:
        await one.pause()
        await one.resume()
        await until(lambda: one.status.last_error is not None and one.status.phase is Phase.OFFLINE)
        await one.pause()
        assert one.status.phase is Phase.OFFLINE
