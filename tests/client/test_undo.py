"""Undo and redo of a client's own events: compensating drafts, online and offline, and why not."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.server.harness import Server, running
from tests.client.running import NOWHERE, WAIT_S, asynchronous, client, of, until
from unisono.client import Committed, InvalidEvent, Rejected, SyncClient, UndoRefused, connect
from unisono.client.undo import STEPS_MAX
from unisono.samples import sample_model


async def reason(client: SyncClient, partition: str | None = None, *, redo: bool = False) -> str:
    with pytest.raises(UndoRefused) as refused:
        await (client.redo(partition) if redo else client.undo(partition))
    assert str(refused.value)
    return refused.value.reason


@pytest.mark.req("CLIENT-20", "CLIENT-21")
@asynchronous
async def test_undo_and_redo_are_ordinary_events(server: Server, part: str) -> None:
    async with of(server, f"{part}-a", part) as ann, of(server, f"{part}-b", part) as ben:
        await ann.caught_up(WAIT_S)
        await ben.caught_up(WAIT_S)
        views = [ann.view(part)]
        outline = ann.tree("outline")
        for step in (
            outline.push({"id": "a", "title": "A"}),
            outline.push({"id": "b", "title": "B"}, parent="a"),
            outline.update("a", {"title": "AA"}),
            outline.move("b", parent="_root"),
            ann.set("settings.theme", "dark"),
            outline.delete("a"),
        ):
            await step
            views.append(ann.view(part))
        await ann.caught_up(WAIT_S)
        assert (await ann.undoable() or {})["type"] == "treeDelete"
        for before in views[-2::-1]:
            drafts = await ann.undo()
            assert ann.view(part) == before
            for draft in drafts:
                assert isinstance(await draft.settled(WAIT_S), Committed)
        assert await ann.undoable() is None
        assert await reason(ann) == "nothing"
        for after in views[1:]:
            (draft,) = await ann.redo(part)
            assert ann.view(part) == after
            await draft.settled(WAIT_S)
        assert await reason(ann, redo=True) == "nothing"
        await until(lambda: ben.view(part) == ann.view(part))
        assert len((await ben.history(part)).entries) == 6 + 6 + 6
        assert await reason(ben) == "nothing"  # what others did is theirs


@pytest.mark.req("CLIENT-21")
@asynchronous
async def test_offline_drafts_are_taken_back_and_go_out_in_order(
    server: Server, part: str, tmp_path: Path
) -> None:
    store = tmp_path / "a.db"
    async with client(NOWHERE, part, part, store=store) as ann:
        await ann.set("theme", "dark")
        await ann.tree("outline").push({"id": "a"})
        assert [draft.event["type"] for draft in await ann.undo()] == ["unset"]
        assert ann.view() == {"theme": "dark"}
        await ann.redo()
        await ann.undo()
        await ann.set("theme", "light")
        assert await ann.redoable() is None  # what is new ends redo
        assert len(await ann.pending()) == 6
    async with of(server, part, part, store=store) as ann:
        await ann.caught_up(WAIT_S)
        assert ann.view() == {"theme": "light"}
        assert ann.rejected() == ()
        assert await reason(ann) == "nothing"  # of this run


@pytest.mark.req("CLIENT-22")
@asynchronous
async def test_what_cannot_be_taken_back_says_why(server: Server, part: str) -> None:
    other = f"{part}-other"
    async with of(server, f"{part}-a", part, other) as ann, of(server, f"{part}-b", part) as ben:
        await ann.caught_up(WAIT_S)
        await ben.caught_up(WAIT_S)
        await ann.set("size", 1, partition=part)
        await ann.set("theme", "dark", partition=part)
        await ann.caught_up(WAIT_S)
        await until(lambda: ben.view(part) == ann.view(part))
        await ben.set("theme", "blue")
        await until(lambda: ann.view(part) == {"size": 1, "theme": "blue"})
        assert await reason(ann) == "changed"
        (draft,) = await ann.undo()  # the one before it
        await draft.settled(WAIT_S)
        assert ann.view(part) == {"theme": "blue"}
        await ben.set("size", 7)
        await until(lambda: ann.view(part) == {"size": 7, "theme": "blue"})
        assert await reason(ann, redo=True) == "changed"
        # A partition of its own.
        await ann.set("a", 1, partition=part)
        await ann.set("b", 2, partition=other)
        await ann.undo(part)
        assert ann.view(part) == {"size": 7, "theme": "blue"}
        assert await ann.undoable(part) is None
        assert "'target': 'b'" in str(await ann.undoable(other))
        await ann.remove_partition(other)
        assert await reason(ann) == "gone"
        # An event that changes nothing is no step.
        await ann.set("z", 1, partition=part)
        await ann.unset("never", partition=part)
        await ann.undo()
        assert ann.view(part) == {"size": 7, "theme": "blue"}


@pytest.mark.req("CLIENT-22")
@asynchronous
async def test_rejected_and_left_out(server: Server, part: str) -> None:
    async with of(server, f"{part}-a", part) as ann, of(server, f"{part}-b", part) as ben:
        await ann.caught_up(WAIT_S)
        await ann.pause()
        await ben.caught_up(WAIT_S)
        await (await ben.tree("outline").push({"id": "x"})).settled(WAIT_S)
        draft = await ann.tree("outline").push({"id": "x"})
        await ann.resume()
        assert isinstance(await draft.settled(WAIT_S), Rejected)
        assert await reason(ann) == "rejected"
        # What others did before it is what it is taken back to.
        await ann.set("theme", "first")
        await ann.caught_up(WAIT_S)
        await ann.pause()
        await until(lambda: "theme" in str(ben.view()))
        await (await ben.set("theme", "second")).settled(WAIT_S)
        await ann.set("theme", "third")
        await ann.resume()
        await ann.caught_up(WAIT_S)
        (back,) = await ann.undo()
        await back.settled(WAIT_S)
        assert ann.view()["theme"] == "second"  # type: ignore[index,call-overload]


@pytest.mark.req("CLIENT-20")
@asynchronous
async def test_only_so_many_steps_are_kept(part: str) -> None:
    async with client(NOWHERE, part, part) as ann:
        for number in range(STEPS_MAX + 20):
            await ann.set("n", number)
        for number in range(STEPS_MAX):
            await ann.undo()
            assert ann.view() == {"n": STEPS_MAX + 18 - number}
        assert await reason(ann) == "nothing"
        view = ann._core.views._views[part]
        assert view.tracked == {}
        for _ in range(STEPS_MAX):
            await ann.redo()
        assert ann.view() == {"n": STEPS_MAX + 19}
        assert len(view.tracked) == STEPS_MAX


@pytest.mark.req("CLIENT-21", "CLIENT-23")
def test_a_model_says_how_its_events_are_taken_back(tmp_path: Path) -> None:
    board = sample_model("board")
    with running(tmp_path / "data", "--model", str(board), "--access-default", "allow") as server:
        given: dict[str, Any] = {"client_id": "ann", "partitions": ["b"], "model": board}
        with connect(server.url, token=server.token("ann"), **given) as ann:
            ann.event("list.added", {"id": "todo", "name": "To do"})
            ann.event("card.added", {"id": "c0", "list": "todo", "rank": 0, "title": "first"})
            ann.event("card.added", {"id": "c1", "list": "todo", "rank": 1, "title": "milk"})
            ann.event("card.edited", {"id": "c1", "title": "bread"})
            ann.event("card.voted", {"id": "c1", "votes": 3})
            before: Any = ann.view()
            ann.event("card.removed", {"id": "c1"}).settled(WAIT_S)
            drafts = ann.undo()
            assert [draft.event["payload"]["schema"] for draft in drafts] == ["card.added", "card.voted"]  # type: ignore[index,call-overload]
            assert ann.view() == before
            assert all(isinstance(draft.settled(WAIT_S), Committed) for draft in drafts)
            ann.undo()
            ann.undo()
            view: Any = ann.view()
            assert view["cards"]["c1"] == {
                "list": "todo",
                "rank": 1,
                "title": "milk",
                "done": False,
                "votes": 0,
            }
            ann.redo()
            assert ann.view()["cards"]["c1"]["title"] == "bread"  # type: ignore[index,call-overload]
            ann.undo()
            ann.undo()
            ann.event("card.edited", {"id": "c0", "done": True})
            ann.undo()
            assert ann.view()["cards"]["c0"]["done"] is False  # type: ignore[index,call-overload]
            ann.undo()
            assert ann.view()["cards"] == {}  # type: ignore[index,call-overload]
            with pytest.raises(UndoRefused) as refused:
                ann.undo()  # no event removes a list
            assert refused.value.reason == "no_inverse"
            ann.caught_up(WAIT_S)
            assert ann.rejected() == ()


@pytest.mark.req("CLIENT-17", "CLIENT-20", "CLIENT-21")
@asynchronous
async def test_a_transaction_is_taken_back_event_by_event(server: Server, part: str) -> None:
    async with of(server, part, part) as ann:
        await ann.caught_up(WAIT_S)
        await ann.tree("outline").push({"id": "a", "title": "A"})
        before: Any = ann.view(part)
        async with ann.transaction():
            await ann.tree("outline").delete("a")
            await ann.tree("explorer").push({"id": "a", "title": "A"})
        with suppress(InvalidEvent):
            async with ann.transaction():
                await ann.set("theme", "dark")
                await ann.tree("explorer").push({"id": "a"})
        await ann.caught_up(WAIT_S)
        await ann.undo()  # what was refused is no step
        await ann.undo()
        view: Any = ann.view(part)
        assert view["outline"] == before["outline"]
        assert view.get("explorer", {}).get("items", {}) == {}
        await ann.redo()
        await ann.redo()
        view = ann.view(part)
        assert "a" in view["explorer"]["items"]
        await ann.caught_up(WAIT_S)
        assert ann.rejected() == ()
