"""The client against a real server over real sockets."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.behaviour.server.harness import Server, running, running_by_window
from tests.client.proxy import Proxy
from tests.client.running import QUICK, WAIT_S, Gate, asynchronous, client, of, until
from tests.waiting import in_a_window
from unisono.client import (
    ClientClosed,
    ClientError,
    ClientStopped,
    Committed,
    InvalidEvent,
    NotCaughtUp,
    Options,
    Phase,
    Rejected,
    StoreDamaged,
    StoreInUse,
    SyncClient,
    UnknownDraft,
    UnknownPartition,
    connect,
)
from unisono.client.net.connection import backoff_s
from unisono.vocabulary import FieldError

NOWHERE = "ws://127.0.0.1:9/sync"
"""A port where nobody listens."""


def rows(path: Path, table: str) -> list[tuple[object, ...]]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return [tuple(row) for row in connection.execute(f"SELECT * FROM {table}")]
    finally:
        connection.close()


@pytest.mark.req("CLIENT-01", "CLIENT-13")
@asynchronous
async def test_a_draft_is_in_the_file_before_anything_is_sent(tmp_path: Path, who: str) -> None:
    path = tmp_path / "c.db"
    async with client(NOWHERE, who, "p", store=path) as offline:
        first = await offline.set("a", 1)
        second = await offline.set("b", 2)
        assert first.draft_clock < second.draft_clock
        assert [row[1] for row in rows(path, "drafts")] == [first.id, second.id]
        assert offline.view() == {"a": 1, "b": 2}
        assert offline.status.pending == 2
        await until(lambda: offline.status.last_error is not None)
        assert offline.status.last_error is not None
        assert offline.status.last_error.code == "unreachable"


@pytest.mark.req("CLIENT-13")
@asynchronous
async def test_work_done_offline_goes_online_later_and_nothing_is_lost(
    server: Server, tmp_path: Path, part: str, who: str
) -> None:
    path = tmp_path / "c.db"
    for day in range(3):
        async with client(NOWHERE, who, part, store=path) as offline:
            tree = offline.tree("notes")
            await tree.push({"id": f"n{day}", "text": "hello"})
            await tree.update(f"n{day}", {"day": day})
    gate = Gate(server.token(who))
    async with of(server, who, part, store=path, token=gate) as online:
        drafts = await online.pending()
        assert len(drafts) == 6
        gate.open()
        await online.caught_up(WAIT_S)
        outcomes = [await draft.settled(WAIT_S) for draft in drafts]
        ids = [outcome.committed_id for outcome in outcomes if isinstance(outcome, Committed)]
        assert ids == sorted(ids), "in draft_clock order"
        shown = online.view()
    async with of(server, f"{who}-other", part) as other:
        await other.caught_up(WAIT_S)
        assert other.view() == shown
        assert other.view()["notes"]["items"].keys() == {"n0", "n1", "n2"}  # type: ignore[index,call-overload,union-attr]


@pytest.mark.req("CLIENT-02")
@asynchronous
async def test_an_invalid_event_is_neither_stored_nor_sent(
    server: Server, tmp_path: Path, part: str, who: str
) -> None:
    path = tmp_path / "c.db"
    async with of(server, who, part, store=path) as one:
        await one.tree("t").push({"id": "a"})
        await one.caught_up(WAIT_S)
        head = one.status.cursor
        for event, field in (
            ({"type": "event", "payload": {}}, "event.type"),
            ({"type": "set", "payload": {"target": "..", "value": 1}}, "event.payload.target"),
            (
                {"type": "treePush", "payload": {"target": "t", "value": {"id": "a"}}},
                "event.payload.value.id",
            ),
            (
                {"type": "treeDelete", "payload": {"target": "t", "options": {"id": "b"}}},
                "event.payload.options.id",
            ),
        ):
            with pytest.raises(InvalidEvent) as refused:
                await one.submit([part], event)
            assert [error.field for error in refused.value.errors] == [field]
        with pytest.raises(InvalidEvent, match="partitions"):
            await one.submit([], {"type": "unset", "payload": {"target": "t"}})
        assert rows(path, "drafts") == []
        last = await one.set("ok", 1)
        outcome = await last.settled(WAIT_S)
        assert isinstance(outcome, Committed)
        assert outcome.committed_id == head + 1


@asynchronous
async def test_an_id_can_be_chosen_once(server: Server, part: str, who: str) -> None:
    async with of(server, who, part) as one:
        event = {"type": "set", "payload": {"target": "a", "value": 1}}
        draft = await one.submit([part], event, id=f"{part}-mine")
        assert draft.id == f"{part}-mine"
        for _ in range(2):
            with pytest.raises(InvalidEvent, match="given to another event"):
                await one.submit([part], event, id=draft.id)
            await draft.settled(WAIT_S)


@pytest.mark.req("PART-05")
@asynchronous
async def test_the_older_partition_argument(server: Server, part: str, who: str) -> None:
    async with of(server, who, part) as one:
        draft = await one.submit(partition=part, event={"type": "unset", "payload": {"target": "a"}})
        assert draft.partitions == (part,)
        assert isinstance(await draft.settled(WAIT_S), Committed)


@pytest.mark.req("CLIENT-03")
@asynchronous
async def test_a_refused_draft_leaves_the_view_and_is_kept_with_its_reason(
    server: Server, tmp_path: Path, part: str, who: str
) -> None:
    path = tmp_path / "c.db"
    async with client(NOWHERE, who, part, store=path) as offline:
        await offline.tree("t").push({"id": "x", "by": "me"})
        await offline.set("mine", 1)
    async with of(server, f"{who}-other", part) as other:
        await other.tree("t").push({"id": "x", "by": "other"})
        await other.caught_up(WAIT_S)
    gate = Gate(server.token(who))
    async with of(server, who, part, store=path, token=gate) as online:
        first, second = await online.pending()
        gate.open()
        outcome = await first.settled(WAIT_S)
        assert isinstance(outcome, Rejected)
        assert outcome.reason == "validation_failed"
        assert [error.field for error in outcome.errors] == ["event.payload.value.id"]
        assert isinstance(await second.settled(WAIT_S), Committed), "it does not hold up what is behind it"
        view = online.view()
        assert view["t"]["items"] == {"x": {"by": "other"}}  # type: ignore[index,call-overload]
        assert online.rejected() == (outcome,)
        assert online.status.rejected == 1
    async with of(server, who, part, store=path) as again:
        assert again.rejected() == (outcome,)
        await again.caught_up(WAIT_S)
        with pytest.raises(InvalidEvent):
            await again.retry(first.id)
        assert again.rejected() == (outcome,), "a retry that is refused at once changes nothing"
        await again.tree("t").delete("x")
        retried = await again.retry(first.id)
        assert retried.id == first.id
        assert isinstance(await retried.settled(WAIT_S), Committed)
        assert again.rejected() == ()
        with pytest.raises(UnknownDraft):
            await again.discard(first.id)


@asynchronous
async def test_a_rejected_draft_can_be_discarded(server: Server, part: str, who: str) -> None:
    async with of(server, who, part, token=server.token(who, partitions=[part])) as one:
        draft = await one.submit(["forbidden-place"], {"type": "unset", "payload": {"target": "a"}})
        outcome = await draft.settled(WAIT_S)
        assert isinstance(outcome, Rejected)
        assert outcome.reason == "forbidden"
        assert outcome.errors == (FieldError("partitions", "not authorised for 'forbidden-place'"),)
        await one.discard(draft.id)
        assert one.rejected() == ()
        assert one.status.rejected == 0


@pytest.mark.req("CLIENT-04")
@asynchronous
async def test_what_comes_by_result_broadcast_and_sync_is_there_once(
    server: Server, tmp_path: Path, part: str, who: str
) -> None:
    path = tmp_path / "a.db"
    with Proxy(server.url) as proxy:
        async with (
            of(server, who, part, store=path, url=proxy.url) as one,
            of(server, f"{who}-2", part) as two,
        ):
            for number in range(30):
                await (one if number % 2 else two).set(f"k{number}", number)
                if number % 7 == 0:
                    proxy.cut()
            await asyncio.gather(one.caught_up(WAIT_S), two.caught_up(WAIT_S))
            await until(lambda: one.status.cursor == two.status.cursor)
            assert one.view() == two.view() == {f"k{n}": n for n in range(30)}
    assert len(rows(path, "events")) == 30
    assert rows(path, "drafts") == []


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
    with Proxy(server.url) as proxy:
        async with of(server, who, part, url=proxy.url, token=token) as one:
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
async def test_partitions_that_are_forbidden_are_set_aside(tmp_path: Path, who: str) -> None:
    with running(tmp_path / "d") as strict:
        token = strict.token(who, partitions=["good", "better"])
        async with of(strict, who, "good", "bad", "better", token=token) as one:
            with pytest.raises(NotCaughtUp, match=r"1 of the partitions is refused .* 'bad' \(forbidden\)"):
                await one.caught_up(WAIT_S)
            assert one.status.set_aside == {"bad": "forbidden"}
            assert one.status.last_error is not None
            assert one.status.last_error.code == "forbidden"
            await (await one.set("a", 1, partition="better")).settled(WAIT_S)
            assert one.view("better") == {"a": 1}
            assert one.view("bad") == {}


@asynchronous
async def test_a_rate_limit_slows_down_and_loses_nothing(
    tmp_path: Path, part: str, who: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "unisono.client")
    limits = ("--rate-events-per-s", "50", "--rate-burst-events", "10", "--max-batch-size", "10")
    with running(tmp_path / "d", "--access-default", "allow", *limits) as slow:
        async with of(slow, who, part) as one:
            started = time.monotonic()
            await asyncio.gather(*(one.set(f"k{n}", n) for n in range(60)))
            await one.caught_up(WAIT_S)
            assert time.monotonic() - started > 0.8
            assert f"{who}: rate_limited: " in caplog.text
            assert one.status.last_error is None, "it is over"
            assert one.rejected() == ()
            assert slow.metric("unisono_commits_total") == 60


@asynchronous
async def test_batches_keep_to_the_servers_bounds(tmp_path: Path, part: str, who: str) -> None:
    bounds = ("--max-batch-size", "7", "--max-message-bytes", "4096")
    path = tmp_path / "c.db"
    async with client(NOWHERE, who, part, store=path) as offline:
        for number in range(20):
            await offline.set(f"k{number}", "x" * 1000)
        await offline.set("large", "x" * 10_000)
        await offline.set("last", 1)
    with running(tmp_path / "d", "--access-default", "allow", *bounds) as narrow:
        async with of(narrow, who, part, store=path) as one:
            await one.caught_up(WAIT_S)
            assert [(each.reason, each.event["payload"]["target"]) for each in one.rejected()] == [  # type: ignore[index,call-overload]
                ("too_big", "large")
            ]
            assert one.status.cursor == 21
            with pytest.raises(InvalidEvent, match="larger than a message"):
                await one.set("large", "x" * 10_000)


@asynchronous
async def test_a_partition_added_later_is_fetched_and_one_removed_is_forgotten(
    server: Server, part: str, who: str
) -> None:
    other_part = f"{part}-b"
    async with of(server, f"{who}-writer", part, other_part) as writer, of(server, who, part) as one:
        await writer.set("a", 1, partition=part)
        await writer.set("b", 2, partition=other_part)
        await writer.caught_up(WAIT_S)
        with pytest.raises(UnknownPartition):
            one.view(other_part)
        await one.add_partition(other_part)
        assert one.view(other_part) in ({}, {"b": 2}), "there at once, with whatever has come by now"
        await one.caught_up(WAIT_S)
        assert one.view(other_part) == {"b": 2}
        assert one.view(part) == {"a": 1}
        await one.remove_partition(part)
        with pytest.raises(UnknownPartition):
            one.view(part)
        await one.caught_up(WAIT_S)
        await writer.set("c", 3, partition=part)
        await writer.set("d", 4, partition=other_part)
        await until(lambda: one.view(other_part) == {"b": 2, "d": 4})
        await one.add_partition(part)
        await until(lambda: one.view(part) == {"a": 1, "c": 3})


@asynchronous
async def test_an_event_in_several_partitions_is_in_every_view(server: Server, part: str, who: str) -> None:
    names = [f"{part}-{n}" for n in range(3)]
    async with of(server, who, *names) as one:
        event = {"type": "set", "payload": {"target": "a", "value": 1}}
        await one.submit(names, event)
        assert [one.view(name) for name in names] == [{"a": 1}] * 3
        await one.caught_up(WAIT_S)
        assert [one.view(name) for name in names] == [{"a": 1}] * 3
        with pytest.raises(TypeError, match="follows 3 of them"):
            await one.set("a", 1)


@asynchronous
async def test_the_same_store_twice_is_an_error_at_once(
    server: Server, tmp_path: Path, part: str, who: str
) -> None:
    path = tmp_path / "c.db"
    async with of(server, who, part, store=path):
        with pytest.raises(StoreInUse):
            async with of(server, who, part, store=path):
                pass
    async with of(server, who, part, store=path) as one:
        await one.caught_up(WAIT_S)


@asynchronous
async def test_a_closed_client_says_so_and_keeps_its_drafts(tmp_path: Path, who: str) -> None:
    path = tmp_path / "c.db"
    never_opened = client(NOWHERE, who, "p", store=path)
    with pytest.raises(ClientClosed, match="not open"):
        await never_opened.set("a", 1)
    async with client(NOWHERE, who, "p", store=path) as one:
        draft = await one.set("a", 1)
        waiting = asyncio.create_task(draft.settled())
        changes = one.changes()
        with pytest.raises(TimeoutError):
            await draft.settled(0.01)
    with pytest.raises(ClientClosed):
        await waiting
    assert [change async for change in changes] == []
    with pytest.raises(ClientClosed):
        await one.set("b", 1)
    await one.close()
    async with client(NOWHERE, who, store=path) as again:
        assert [each.id for each in await again.pending()] == [draft.id]


@asynchronous
async def test_without_partitions_the_store_says_which(tmp_path: Path, who: str) -> None:
    path = tmp_path / "c.db"
    async with client(NOWHERE, who, "p", "q", store=path):
        pass
    async with client(NOWHERE, who, store=path) as one:
        assert one.status.cursors.keys() == {"p", "q"}
    async with client(NOWHERE, who, "q", store=path) as one:
        assert one.status.cursors.keys() == {"q"}


@asynchronous
async def test_a_slow_reader_gets_many_changes_as_one(server: Server, part: str, who: str) -> None:
    async with of(server, who, part, f"{part}-other") as one:
        changes, others = one.changes(part), one.changes(f"{part}-other")
        for number in range(50):
            await one.set("n", number, partition=part)
        await one.caught_up(WAIT_S)
        change = await anext(changes)
        assert change.merged > 50
        assert change.partition == part
        assert change.pending == 0
        assert one.view(part) == {"n": 49}
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(changes), 0.1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(others), 0.01)


@asynchronous
async def test_the_programs_loop_is_not_held_up_by_a_first_sync(server: Server, part: str, who: str) -> None:
    with server.client(f"{who}-writer") as writer:
        for start in range(0, 3000, 100):
            writer.submit(
                *(
                    {
                        "id": f"{part}-{n}",
                        "partitions": [part],
                        "event": {"type": "set", "payload": {"target": f"k{n}", "value": "x" * 200}},
                    }
                    for n in range(start, start + 100)
                )
            )
    own_s, all_s = time.thread_time(), time.process_time()
    async with of(server, who, part) as one:
        await one.caught_up(WAIT_S)
        own_s, all_s = time.thread_time() - own_s, time.process_time() - all_s
        assert len(one.view()) == 3000  # type: ignore[arg-type]
    assert own_s < all_s / 4, "the engine has a thread of its own, and the work is done there"


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


def test_what_a_client_is_made_from_is_checked_at_once() -> None:
    for wrong in (
        {"url": "http://x"},
        {"client_id": ""},
        {"client_id": "é" * 129},
        {"profile": "tree"},
        {"partitions": [""]},
        {"url": "ws://"},
        {"url": "ws:///sync"},
        {"url": "ws://x:99999/sync"},
        {"url": "wss://[::1"},
        {"url": "ws://x y/sync"},
        {"client_id": "x" * 257},
        {"token": ""},
        {"store": ""},
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            SyncClient(**{"url": "ws://x", "token": "t", "client_id": "c"} | wrong)
    mistyped: tuple[dict[str, Any], ...] = (
        {"url": None},
        {"client_id": 5},
        {"token": None},
        {"token": b"t"},
        {"store": None},
        {"partitions": "p"},
        {"partitions": [5]},
        {"options": {}},
    )
    for each in mistyped:
        with pytest.raises(TypeError):
            SyncClient(**{"url": "ws://x", "token": "t", "client_id": "c"} | each)


def test_calls_that_make_no_sense_are_refused_at_once() -> None:
    one = connect(NOWHERE, token="t", client_id="c", partitions=["p"], profile="compatibility")
    with one:
        with pytest.raises(ClientError, match="open already"):
            one.__enter__()
        for call in (one.view, one.changes, one.add_partition, one.remove_partition):
            with pytest.raises(TypeError, match="is a string, not int"):
                call(5)  # type: ignore[arg-type]
        with pytest.raises(UnknownPartition, match="add_partition"):
            one.changes("never-followed")
        with pytest.raises(TypeError):
            one.submit([5], {})  # type: ignore[list-item]
        with pytest.raises(InvalidEvent, match="id: must be a string"):
            one.submit(["p"], {"type": "unset", "payload": {"target": "a"}}, id=5)  # type: ignore[arg-type]
    for look in (one.changes, one.statuses):
        with pytest.raises(ClientClosed):
            look()
    with one:
        assert one.view() == {}, "a closed client may be opened again"


@asynchronous
async def test_a_snapshot_is_stored_at_the_end_and_used_at_the_start(
    server: Server, tmp_path: Path, part: str, who: str
) -> None:
    path = tmp_path / "c.db"
    async with of(server, who, part, store=path) as one:
        for number in range(20):
            await one.set(f"k{number}", number)
        await one.caught_up(WAIT_S)
        await one.pause()
        await one.set("mine", 1)
        shown, cursor = one.view(), one.status.cursor
    ((_, committed_id, model, _, _),) = rows(path, "snapshots")
    assert committed_id == cursor
    assert model == "tree"
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE events SET event = x'7b7d'")
    connection.close()
    async with client(NOWHERE, who, store=path) as again:
        assert again.view() == shown, "no event was folded again"
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE snapshots SET state = x'7b'")
    connection.close()
    with pytest.raises(StoreDamaged, match="is not what was stored"):
        await client(NOWHERE, who, store=path).__aenter__()  # without its snapshot the events are read


@asynchronous
async def test_snapshots_are_stored_on_the_way_too(
    server: Server, tmp_path: Path, part: str, who: str
) -> None:
    path = tmp_path / "c.db"
    options = Options(snapshot_every=256)
    async with of(server, who, part, store=path, options=options) as one:
        await asyncio.gather(*(one.set("n", number) for number in range(600)))
        await one.caught_up(WAIT_S)
        ((_, committed_id, *_),) = rows(path, "snapshots")
        assert 256 <= int(str(committed_id)) <= one.status.cursor


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
