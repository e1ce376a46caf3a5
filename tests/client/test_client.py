"""The client against a real server over real sockets."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest

from tests.behaviour.server.harness import Server, running
from tests.client.proxy import Proxy
from tests.client.running import NOWHERE, WAIT_S, Gate, asynchronous, client, of, rows, until
from unisono.client import Committed, InvalidEvent, NotCaughtUp, Rejected, UnknownDraft, UnknownPartition
from unisono.vocabulary import FieldError


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
