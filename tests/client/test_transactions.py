"""Transactions of the Python client: stored, shown, sent, committed and rejected as a whole, also offline."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import pytest

from tests.behaviour.server.harness import Server, item, running, tree_event
from tests.client.peers import Line, playing
from tests.client.running import NOWHERE, QUICK, WAIT_S, asynchronous, client, of, rows, until
from tests.client.workers import Worker, job
from unisono.client import (
    BlockingClient,
    ClientError,
    Committed,
    InvalidEvent,
    Rejected,
    SyncClient,
    Transaction,
    TransactionRefused,
    connect,
)


def ids(view: Any, target: str = "list") -> list[str]:
    """The items of a tree, or of none."""
    return sorted(view.get(target, {}).get("items", {}))


def shown(client: SyncClient | BlockingClient, partition: str | None = None) -> Any:
    return client.view(partition)


async def transact(ann: SyncClient, *calls: Callable[[], Awaitable[object]]) -> Transaction:
    async with ann.transaction() as transaction:
        for call in calls:
            await call()
    return transaction


def broken() -> NoReturn:
    raise KeyError("the program's own")


def adjacent(outcomes: list[Committed | Rejected]) -> bool:
    numbers = [each.committed_id for each in outcomes if isinstance(each, Committed)]
    return len(numbers) == len(outcomes) and numbers == [*range(numbers[0], numbers[0] + len(numbers))]


@pytest.mark.req("CLIENT-17", "EXT-10")
@asynchronous
async def test_a_transaction_is_stored_shown_and_committed_as_a_whole(
    server: Server, part: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.db"
    async with of(server, f"{part}-a", part, store=path) as ann, of(server, f"{part}-b", part) as ben:
        await ann.caught_up(WAIT_S)
        async with ann.transaction() as transaction:
            first = await ann.tree("list").push({"id": "x"})
            moved = await ann.tree("list").push({"id": "y"}, parent="x")
            assert ann.view() == {}, "nothing is shown before the end"
            assert rows(path, "drafts") == []
            assert ann.status.pending == 0
            with pytest.raises(ClientError, match="not stored"):
                await first.settled(0)
            assert first.event["type"] == "treePush"
        assert ids(ann.view()) == ["x", "y"]
        assert transaction.drafts == (first, moved)
        assert moved.draft_clock == first.draft_clock + 1
        assert adjacent(await transaction.settled(WAIT_S))
        await until(lambda: ids(ben.view()) == ["x", "y"])
        assert ann.rejected() == ()


@pytest.mark.req("CLIENT-17")
def test_the_blocking_client_has_it_too(server: Server, part: str, who: str) -> None:
    with connect(
        server.url, token=server.token(who), client_id=who, partitions=[part], profile="compatibility"
    ) as ann:
        ann.caught_up(WAIT_S)
        with ann.transaction() as transaction:
            ann.tree("list").push({"id": "x"})
            ann.set("title", "Plans")
            other = threading.Thread(target=lambda: ann.set("colour", "red"))
            other.start()
            other.join()
            assert ann.view() == {"colour": "red"}, "another thread is not in the transaction"
        assert adjacent(transaction.settled(WAIT_S))
        assert shown(ann)["title"] == "Plans"
        with ann.transaction() as empty:
            pass
        assert empty.settled(WAIT_S) == []


@pytest.mark.req("CLIENT-17", "CLIENT-02")
@asynchronous
async def test_what_goes_wrong_in_the_block_leaves_nothing(part: str, tmp_path: Path) -> None:
    async with client(NOWHERE, "ann", part, store=tmp_path / "a.db") as ann:
        await ann.tree("list").push({"id": "x"})
        push, put = ann.tree("list").push, {"type": "set", "payload": {"target": "a", "value": 1}}
        with pytest.raises(KeyError):
            await transact(ann, lambda: push({"id": "y"}), broken)
        bad = {"type": "set", "payload": {"target": 1, "value": 2}}
        with pytest.raises(InvalidEvent, match=r"^event.payload.target"):
            await transact(ann, lambda: push({"id": "y"}), lambda: ann.submit([part], bad))
        with pytest.raises(InvalidEvent, match=r"^events.1.event.payload.value.id: this id is already"):
            await transact(ann, lambda: push({"id": "y"}), lambda: push({"id": "x"}))
        with pytest.raises(InvalidEvent, match=r"^events.1.id"):
            await transact(ann, *[lambda: ann.submit([part], put, id="same")] * 2)
        with pytest.raises(ClientError, match="not inside another"):
            async with ann.transaction(), ann.transaction():
                pass
        assert ids(ann.view()) == ["x"]
        assert (ann.status.pending, len(rows(tmp_path / "a.db", "drafts"))) == (1, 1)
        async with ann.transaction():
            event: dict[str, Any] = {"type": "set", "payload": {"target": "a", "value": 1}}
            await ann.submit([part], event)
            event["payload"]["value"] = "changed by the program meanwhile"
        assert shown(ann)["a"] == 1


@pytest.mark.req("CLIENT-17")
@asynchronous
async def test_tasks_started_in_the_block_are_part_of_it_until_it_ends(part: str) -> None:
    async with client(NOWHERE, "ann", part) as ann:
        end = asyncio.Event()

        async def later() -> None:
            await end.wait()
            await ann.set("late", 1)

        async with ann.transaction() as transaction:
            await asyncio.gather(*(ann.set(f"k{n}", n) for n in range(5)))
            task = asyncio.create_task(later())
        assert len(transaction.drafts) == 5
        end.set()
        with pytest.raises(ClientError, match="has ended"):
            await task
        await ann.set("after", 1)
        assert set(shown(ann)) == {"k0", "k1", "k2", "k3", "k4", "after"}


@pytest.mark.req("CLIENT-17", "CLIENT-13")
@asynchronous
async def test_offline_transactions_survive_a_restart_and_go_out_whole(
    server: Server, part: str, tmp_path: Path
) -> None:
    who, path = f"{part}-a", tmp_path / "a.db"
    async with client(NOWHERE, who, part, store=path) as ann:
        await ann.set("before", 1)
        for number in range(3):
            async with ann.transaction():
                await ann.tree("list").push({"id": f"{number}-a"})
                await ann.tree("list").push({"id": f"{number}-b"}, parent=f"{number}-a")
            await ann.set("between", number)
    async with of(server, who, part, store=path) as ann:
        assert len(ids(ann.view())) == 6
        drafts = await ann.pending()
        assert len(drafts) == 10
        outcomes = [await draft.settled(WAIT_S) for draft in drafts]
        for number in range(3):
            assert adjacent(outcomes[1 + 3 * number : 3 + 3 * number])
        await ann.caught_up(WAIT_S)
    with server.client(f"{part}-z") as peer:
        kinds = [each["event"]["type"] for each in peer.history([part])]
        assert kinds == ["set", *["treePush", "treePush", "set"] * 3]


@pytest.mark.req("CLIENT-17", "CLIENT-03", "EXT-11")
@asynchronous
async def test_they_rebase_together_and_are_rejected_together(
    server: Server, part: str, tmp_path: Path
) -> None:
    """Somebody else takes a name that one draft of the transaction needs, while this client is offline."""
    async with of(server, f"{part}-a", part, store=tmp_path / "a.db") as ann:
        await ann.caught_up(WAIT_S)
        await ann.pause()
        async with ann.transaction():
            await ann.set("title", "mine")
            await ann.tree("list").push({"id": "x"})
            await ann.tree("list").push({"id": "z"})
        behind = await ann.set("other", 1)
        assert set(shown(ann)) == {"title", "list", "other"}
        with server.client(f"{part}-b") as ben:
            ben.commit([part], tree_event("x", "list", by="ben"))
        gone = asyncio.Event()
        stream = ann.changes()

        async def watch() -> None:
            async for _ in stream:
                view: Any = ann.view()
                whole = "title" in view, "z" in ids(view), view["list"]["items"].get("x") == {}
                assert len(set(whole)) == 1, f"a part of the transaction is shown: {view}"
                if not any(whole):
                    gone.set()

        task = asyncio.create_task(watch())
        await ann.resume()
        assert isinstance(await behind.settled(WAIT_S), Committed)
        await until(lambda: len(ann.rejected()) == 3)
        await ann.caught_up(WAIT_S)
        assert ann.view() == {
            "list": {"items": {"x": {"by": "ben"}}, "tree": [{"id": "x", "children": []}]},
            "other": 1,
        }
        assert [each.reason for each in ann.rejected()] == [
            "not_processed", "validation_failed", "not_processed",
        ]  # fmt: skip
        assert len({each.transaction for each in ann.rejected()}) == 1
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        # They are tried again together, and forgotten together.
        with pytest.raises(InvalidEvent, match=r"^events.1"):
            await ann.retry(ann.rejected()[2].id)
        assert len(ann.rejected()) == 3
        with server.client(f"{part}-b") as ben:
            ben.commit([part], {"type": "treeDelete", "payload": {"target": "list", "options": {"id": "x"}}})
        await until(lambda: ids(ann.view()) == [])
        again = await ann.retry(ann.rejected()[2].id)
        assert isinstance(await again.settled(WAIT_S), Committed)
        assert (ids(ann.view()), ann.rejected()) == (["x", "z"], ())


@pytest.mark.req("CLIENT-17")
@asynchronous
async def test_discarding_one_discards_the_transaction(server: Server, part: str, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with of(server, f"{part}-a", part, store=path) as ann:
        with server.client(f"{part}-b") as ben:
            await ann.caught_up(WAIT_S)
            await ann.pause()
            ben.commit([part], tree_event("x", "list"))
        async with ann.transaction() as transaction:
            await ann.set("title", "mine")
            await ann.tree("list").push({"id": "x"})
        await ann.resume()
        assert all(isinstance(each, Rejected) for each in await transaction.settled(WAIT_S))
    async with of(server, f"{part}-a", part, store=path) as ann:
        assert len({each.transaction for each in ann.rejected()}) == 1, "also after a restart"
        await ann.discard(ann.rejected()[0].id)
        assert ann.rejected() == ()
        assert rows(path, "drafts") == []


@pytest.mark.req("CLIENT-17", "CLIENT-03")
@asynchronous
async def test_a_transaction_in_two_partitions_is_shown_in_both_or_in_none(
    server: Server, part: str, tmp_path: Path
) -> None:
    p, q = f"{part}-p", f"{part}-q"
    async with of(server, f"{part}-a", p, q, store=tmp_path / "a.db") as ann:
        await ann.tree("list", p).push({"id": "card"})
        await ann.caught_up(WAIT_S)
        await ann.pause()
        async with ann.transaction():
            await ann.tree("list", p).delete("card")
            await ann.tree("list", q).push({"id": "card"})
        async with ann.transaction():
            await ann.tree("list", q).push({"id": "below"}, parent="card")
            await ann.set("seen", 1, partition=p)
        assert (ids(ann.view(p)), ids(ann.view(q))) == ([], ["below", "card"])
        with server.client(f"{part}-b") as ben:
            (result,) = ben.submit(
                item([p], {"type": "treeDelete", "payload": {"target": "list", "options": {"id": "card"}}})
            )
            assert result["status"] == "committed"
    # The first does not fit in p any more: it is hidden in q as well, and the second, which needs it, in both.
    async with client(NOWHERE, f"{part}-a", p, q, store=tmp_path / "a.db") as ann:
        assert (ids(ann.view(p)), ids(ann.view(q))) == ([], ["below", "card"]), "nothing has come yet"
    async with of(server, f"{part}-a", p, q, store=tmp_path / "a.db") as ann:
        await ann.caught_up(WAIT_S)
        assert (ids(ann.view(p)), ids(ann.view(q)), shown(ann, p).get("seen")) == ([], [], None)
        assert [each.reason for each in ann.rejected()] == [
            "validation_failed", "not_processed", "validation_failed", "not_processed",
        ]  # fmt: skip


@pytest.mark.req("CLIENT-17")
@asynchronous
async def test_a_transaction_that_is_too_large_is_refused_when_it_is_made(tmp_path: Path, who: str) -> None:
    options = ("--access-default", "allow", "--max-batch-size", "5", "--max-message-bytes", "65536")
    with running(tmp_path / "data", *options) as server:
        path = tmp_path / "a.db"
        async with client(NOWHERE, who, "p", store=path) as ann:  # it knows no limits yet
            async with ann.transaction():
                for number in range(6):
                    await ann.set(f"k{number}", number)
            await ann.set("behind", 1)
        async with of(server, who, "p", store=path) as ann:
            await ann.caught_up(WAIT_S)
            assert {each.reason for each in ann.rejected()} == {"too_many_events"}
            assert len(ann.rejected()) == 6
            assert ann.view() == {"behind": 1}
            with pytest.raises(TransactionRefused, match="6 events, and the server takes 5"):
                await transact(ann, *[lambda: ann.set("k", 1)] * 6)
            with pytest.raises(InvalidEvent, match=r"^events: "):
                await transact(ann, *[lambda: ann.set("k", "x" * 30_000)] * 3)
            async with ann.transaction() as transaction:
                for number in range(5):
                    await ann.set(f"k{number}", number)
            assert adjacent(await transaction.settled(WAIT_S))
            await ann.discard(ann.rejected()[3].id)
            assert ann.rejected() == ()


@pytest.mark.req("CLIENT-17", "EXT-01")
@asynchronous
async def test_an_old_server_is_never_sent_a_part_of_it(tmp_path: Path) -> None:
    """Made offline it is rejected once the server is known; made online it is refused at once."""
    path = tmp_path / "a.db"
    async with client(NOWHERE, "ann", "p", store=path) as ann:
        async with ann.transaction():
            await ann.set("a", 1)
            await ann.set("b", 2)
        await ann.set("c", 3)

    def old(line: Line) -> None:
        line.welcome()
        line.expect("sync")
        line.page(to=0)
        (sent,) = line.expect("submit_events")["events"]
        result = {"id": sent["id"], "status": "committed", "committed_id": 1, "status_updated_at": 1}
        line.say("submit_events_result", {"results": [result]})
        line.hold()

    with playing(old) as peer:
        async with client(peer.url, "ann", "p", store=path) as ann:
            await ann.caught_up(WAIT_S)
            assert [each.reason for each in ann.rejected()] == ["atomic_unsupported"] * 2
            assert "does not take transactions" in ann.rejected()[0].errors[0].message
            assert ann.view() == {"c": 3}
            with pytest.raises(TransactionRefused, match="does not take transactions"):
                await transact(ann, lambda: ann.set("a", 1))
            assert ann.status.pending == 0


@pytest.mark.req("CLIENT-17", "EXT-12")
@asynchronous
async def test_an_answer_that_was_lost_is_asked_for_again(server: Server, part: str, tmp_path: Path) -> None:
    """The batch is committed, the client does not know; a partition that it does not follow is in it as well."""
    path, who = tmp_path / "a.db", f"{part}-a"
    async with client(NOWHERE, who, part, store=path) as ann:
        async with ann.transaction():
            await ann.submit([part], {"type": "set", "payload": {"target": "a", "value": 1}}, id=f"{part}-1")
            await ann.submit(
                [f"{part}-else"], {"type": "set", "payload": {"target": "b", "value": 1}}, id=f"{part}-2"
            )
        sent = [item(draft.partitions, dict(draft.event), draft.id) for draft in await ann.pending()]
    with server.client(who, extensions=["atomic"]) as peer:
        peer.send("submit_events", {"events": sent, "atomic": True})
        first = peer.expect("submit_events_result")["results"]
    async with of(server, who, part, store=path, options=QUICK) as ann:
        outcomes = [await draft.settled(WAIT_S) for draft in await ann.pending()]
        await ann.caught_up(WAIT_S)
        assert ann.rejected() == ()
        known = {each["id"]: each["committed_id"] for each in first}
        assert all(isinstance(each, Committed) and known[each.id] == each.committed_id for each in outcomes)


@pytest.mark.req("CLIENT-17", "CLIENT-01")
def test_kill_9_leaves_whole_transactions_only(server: Server, part: str, who: str, tmp_path: Path) -> None:
    """Of a client that makes transactions of five, offline and online."""
    path, random = tmp_path / "a.db", Random(5)
    for url, rounds in ((NOWHERE, 8), (server.url, 8)):
        worker = Worker(job(url, server.token(who), who, path, part, seed=5, together=5))
        for _ in range(rounds):
            worker.start()
            worker.wait_for_drafts(random.randint(1, 8))
            time.sleep(random.uniform(0, 0.01))
            worker.kill()
            batches = Counter(batch for *_, batch in rows(path, "drafts"))
            assert set(batches.values()) <= {5}, batches
    with connect(
        server.url, token=server.token(who), client_id=who, store=path, profile="compatibility", options=QUICK
    ) as last:
        last.caught_up(WAIT_S)
        assert last.rejected() == ()
    with server.client(f"{who}-reader") as reader:
        values = [each["event"]["payload"]["value"] for each in reader.history([part])]
    assert len(values) % 5 == 0
    for start in range(0, len(values), 5):
        name = values[start][0]
        assert values[start : start + 5] == [[name, n] for n in range(5)], "next to each other, in order"
    assert len(values) >= 5 * 16
