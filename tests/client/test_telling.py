"""What a client tells of itself: why it is not connected, why waiting was in vain, when a draft was refused."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.server.harness import Server
from tests.client.peers import Line, playing
from tests.client.running import NOWHERE, QUICK, WAIT_S, Gate, asynchronous, client, of, until
from unisono.client import ClientStopped, Committed, Options, Phase, Rejected, connect


def live(line: Line) -> None:
    line.welcome()
    line.expect("sync")
    line.page(to=0)
    line.hold()


# -- saying goodbye ------------------------------------------------------------------------------------------


@pytest.mark.req("CONN-06")
@asynchronous
async def test_a_pause_and_a_close_say_disconnect() -> None:
    with playing(live) as peer:
        async with client(peer.url, "me", "p") as one:
            await one.caught_up(WAIT_S)
            await one.pause()
            await until(lambda: peer.log[-1]["type"] == "disconnect")
            assert peer.log[-1]["payload"] == {"reason": "client_paused"}
            await one.resume()
            await one.caught_up(WAIT_S)
        await until(lambda: peer.log[-1]["type"] == "disconnect")
        assert peer.log[-1]["payload"] == {"reason": "client_shutdown"}


# -- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.req("CLIENT-03")
@asynchronous
async def test_a_rejected_draft_keeps_the_servers_time(tmp_path: Path) -> None:
    def script(line: Line) -> None:
        line.welcome()
        line.expect("sync")
        line.page(to=0)
        for more in ({"status_updated_at": 1_738_451_203_007}, {}):
            (item,) = line.expect("submit_events")["events"]
            result: dict[str, Any] = {"id": item["id"], "status": "rejected", "reason": "forbidden"}
            line.say("submit_events_result", {"results": [result | more]})
        line.hold()

    path = tmp_path / "c.db"
    with playing(script) as peer:
        async with client(peer.url, "me", "p", store=path) as one:
            told = await (await one.set("a", 1)).settled(WAIT_S)
            assert isinstance(told, Rejected)
            assert told.status_updated_at == 1_738_451_203_007
            untold = await (await one.set("b", 1)).settled(WAIT_S)
            assert isinstance(untold, Rejected)
            assert untold.status_updated_at is None, "a server that tells no time"
    async with client(NOWHERE, "me", store=path) as again:
        assert again.rejected() == (told, untold)


# -- why not -------------------------------------------------------------------------------------------------


async def why(url: str, **more: Any) -> str:
    """What `caught_up` says of a client that cannot be."""
    async with client(url, "me", "p", **more) as one:
        await until(lambda: one.status.last_error is not None)
        with pytest.raises(TimeoutError) as late:
            await one.caught_up(0.01)
        with pytest.raises(TimeoutError) as unanswered:
            await (await one.set("a", 1)).settled(0.01)
        assert "was not answered" in str(unanswered.value)
        assert one.status.last_error is not None
        assert one.status.last_error.message in str(unanswered.value)
        return str(late.value)


@asynchronous
async def test_nobody_listens() -> None:
    told = await why("ws://ann:secret@127.0.0.1:9/sync?key=secret")
    assert "unreachable: ws://127.0.0.1:9/sync cannot be reached: " in told
    assert "secret" not in told


@asynchronous
async def test_a_wrong_path(server: Server) -> None:
    told = await why(server.url.replace("/sync", "/wrong"))
    assert "unreachable: " in told
    assert "/wrong answers with HTTP status 404: is the path of the address right?" in told


@asynchronous
async def test_tls_where_there_is_none(server: Server) -> None:
    options = Options(backoff_base_s=0.02, connect_timeout_s=0.2)
    told = await why(server.url.replace("ws://", "wss://"), options=options)
    assert "does it speak TLS, as wss:// needs?" in told
    opened, url = await answering(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    async with opened:
        assert "does not speak TLS as wss:// needs it" in await why(url.replace("ws://", "wss://"))


async def answering(answer: bytes) -> tuple[asyncio.Server, str]:
    """A server that says one thing to whoever calls."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(answer)
        await writer.drain()
        writer.close()

    opened = await asyncio.start_server(take, "127.0.0.1", 0)
    return opened, f"ws://127.0.0.1:{opened.sockets[0].getsockname()[1]}/sync"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>", "answers, but not as a WebSocket server"),
        (b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n", "answers with HTTP status 502"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "answers, but not as a WebSocket server"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "answers, but not as a WebSocket server"),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n",
            "/sync closed the connection in the middle of its answer",
        ),
        (b"", "closed the connection before it was open: does it need wss://?"),
    ],
)
@asynchronous
async def test_somebody_else_answers(answer: bytes, expected: str) -> None:
    opened, url = await answering(answer)
    async with opened:
        assert expected in await why(url)


@asynchronous
async def test_a_token_function_that_never_answers_is_named() -> None:
    gate = Gate()
    options = Options(backoff_base_s=0.02, connect_timeout_s=0.05)
    assert "token_failed: the token function has not answered for 0.05 s" in await why(
        NOWHERE, token=gate, options=options
    )


@asynchronous
async def test_a_refused_partition_is_named_when_waiting_is_in_vain() -> None:
    def script(line: Line) -> None:
        line.welcome()
        line.expect("sync")
        line.say("error", {"code": "forbidden", "message": "no", "details": {"partitions": ["q"]}})
        line.expect("sync")
        line.page(to=0)
        line.expect("submit_events")
        line.hold()

    with playing(script) as peer:
        async with client(peer.url, "me", "p", "q") as one:
            await one.set("a", 1, partition="p")
            await until(lambda: one.status.phase is Phase.LIVE)
            with pytest.raises(TimeoutError, match=r"1 drafts? .* 1 of the partitions is refused .*: 'q'"):
                await one.caught_up(0.01)


@asynchronous
async def test_no_time_at_all_is_enough_for_a_client_that_has_caught_up(
    server: Server, part: str, who: str
) -> None:
    async with of(server, who, part) as one:
        await one.caught_up(WAIT_S)
        await one.caught_up(0)
        draft = await one.set("a", 1)
        await draft.settled(WAIT_S)
        await draft.settled(0)


def test_no_time_at_all_is_enough_for_a_blocking_client_too(server: Server, part: str, who: str) -> None:
    with connect(
        server.url, token=server.token(who), client_id=who, partitions=[part], profile="compatibility"
    ) as one:
        one.caught_up(WAIT_S)
        one.caught_up(0)
        draft = one.set("a", 1)
        assert isinstance(draft.settled(WAIT_S), Committed)
        assert isinstance(draft.settled(0), Committed)
        one.pause()
        with pytest.raises(TimeoutError, match="the client is offline"):
            one.caught_up(0)


# -- stopping ------------------------------------------------------------------------------------------------


@pytest.mark.req("CLIENT-08")
@asynchronous
async def test_a_fixed_token_that_is_refused_stops_the_client(server: Server, part: str, who: str) -> None:
    async with of(server, who, part, token="wrong") as one:
        draft = await one.set("a", 1)
        with pytest.raises(ClientStopped, match=r"auth_failed: the server refuses the token .*JWT"):
            await one.caught_up(WAIT_S)
        with pytest.raises(ClientStopped, match="auth_failed"):
            await draft.settled()
        assert one.status.stopped is not None
        assert one.status.last_error is not None
        assert one.status.last_error.code == "auth_failed"
        assert [each.id for each in await one.pending()] == [draft.id], "nothing is lost"


@asynchronous
async def test_a_fixed_token_that_is_refused_is_not_tried_again() -> None:
    def refuse(line: Line) -> None:
        line.expect("connect")
        line.say("error", {"code": "auth_failed", "message": "the token has expired"})
        line.socket.close(4001)

    with playing(refuse, live) as peer:
        async with client(peer.url, "me", "p", token="fixed") as one:
            await until(lambda: one.status.stopped is not None)
            assert "the token has expired" in str(one.status.stopped)
            await asyncio.sleep(0.3)
            assert len(peer.log) == 1
            await one.resume()
            await one.caught_up(WAIT_S)
            assert one.status.last_error is None
            assert one.status.stopped is None


@asynchronous
async def test_a_token_function_is_asked_again_with_growing_waits() -> None:
    def refuse(line: Line) -> None:
        line.expect("connect")
        line.say("error", {"code": "auth_failed", "message": "no"})
        line.socket.close(4001)

    asked: list[float] = []

    def token() -> str:
        asked.append(time.monotonic())
        return "t"

    with playing(refuse) as peer:
        async with client(peer.url, "me", "p", token=token) as one:
            await until(lambda: len(asked) >= 5)
            assert one.status.stopped is None
            with pytest.raises(TimeoutError, match="auth_failed: no"):
                await one.caught_up(0.01)


@asynchronous
async def test_who_waits_for_a_draft_is_told_that_the_client_has_stopped(
    server: Server, part: str, who: str
) -> None:
    gate = Gate(server.token(who))
    async with of(server, who, part, token=gate) as older:
        draft = await older.set("a", 1)
        gate.open()
        await draft.settled(WAIT_S)
        async with of(server, who, part):
            await until(lambda: older.status.stopped is not None)
            waiting = await older.set("b", 2)
            with pytest.raises(ClientStopped, match="took over"):
                await waiting.settled()
        await older.resume()
        assert isinstance(await waiting.settled(WAIT_S), Committed)


@asynchronous
async def test_who_already_waits_for_a_draft_is_told_that_the_client_stops() -> None:
    def replaced(line: Line) -> None:
        line.welcome()
        line.expect("sync")
        line.page(to=0)
        line.expect("submit_events")
        line.socket.close(4003)

    with playing(replaced) as peer:
        async with client(peer.url, "me", "p") as one:
            draft = await one.set("a", 1)
            with pytest.raises(ClientStopped, match="took over"):
                await draft.settled()


def test_a_blocking_wait_ends_too_when_the_client_stops() -> None:
    def replaced(line: Line) -> None:
        line.welcome()
        line.expect("sync")
        line.page(to=0)
        line.expect("submit_events")
        line.socket.close(4003)

    with (
        playing(replaced) as peer,
        connect(
            peer.url, token="t", client_id="me", partitions=["p"], profile="compatibility", options=QUICK
        ) as one,
    ):
        with pytest.raises(ClientStopped, match="took over"):
            one.set("a", 1).settled()
        with pytest.raises(ClientStopped, match="took over"):
            one.caught_up()
