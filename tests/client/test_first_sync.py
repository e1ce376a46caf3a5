"""Starting from the server's snapshots: with real servers, and with peers that send what they should not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import apsw
import pytest

from tests.behaviour.server.harness import Server, running
from tests.behaviour.server.planting import history, plant, snapshot_of, state_of
from tests.client.running import NOWHERE, WAIT_S, WHOLE, Gate, asynchronous, client, of, until
from tests.client.test_models import canonical, notes, reload, write
from tests.forking import run as run_command
from unisono.client import Committed, Options
from unisono.store.port import Record

WORLDS = 4
EVENTS = 200


def world(number: int) -> tuple[str, ...]:
    return tuple(f"w{number}-{name}" for name in "abcd")


@pytest.fixture(scope="module")
def planted(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Server, list[Record], dict[str, int]]]:
    """Random histories with events in several partitions, and snapshots of some partitions at random places."""
    data = tmp_path_factory.mktemp("first") / "data"
    data.mkdir()
    records: list[Record] = []
    floors: dict[str, int] = {}
    random = Random(11)
    for number in range(WORLDS):
        first = len(records) + 1
        records += history(random, world(number), EVENTS, first)
        for name in world(number)[: number + 1]:
            floors[name] = random.randint(first, first + EVENTS - 1)
    plant(data, records, [snapshot_of(records, name, upto) for name, upto in floors.items()])
    with running(data, "--access-default", "allow", "--sync-limit-min", "20") as server:
        yield server, records, floors


def stored(path: Path) -> dict[str, list[int]]:
    """partition → the committed ids kept for it."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        kept: dict[str, list[int]] = {
            str(name): [] for (name,) in connection.execute("SELECT name FROM partitions")
        }
        rows = connection.execute(
            "SELECT name, committed_id FROM event_partitions JOIN partitions ON number = partition"
            " ORDER BY committed_id"
        )
        for name, committed_id in rows:
            kept[str(name)].append(int(str(committed_id)))
    finally:
        connection.close()
    return kept


def snapshot(server: Server, *partitions: str) -> None:
    named = [word for name in partitions for word in ("--partition", name)]
    run_command("snapshot", "--data", server.data, *named).check_returncode()


# -- the same state, from less ---------------------------------------------------------------------------------


@pytest.mark.req("CLIENT-15", "SYNC-12", "CLIENT-05", "CLIENT-13")
@pytest.mark.parametrize("number", range(WORLDS))
@asynchronous
async def test_a_start_from_snapshots_is_the_fold_of_the_log(
    planted: tuple[Server, list[Record], dict[str, int]], tmp_path: Path, number: int
) -> None:
    server, records, floors = planted
    names, path = world(number), tmp_path / "fast.db"
    due = {name: state_of(records, name).tree.dump() for name in names}
    options = Options(page_limit=20 + 10 * number)
    async with (
        of(server, f"fast-{number}", *names, store=path, options=options) as fast,
        of(server, f"whole-{number}", *names, options=WHOLE) as whole,
    ):
        await fast.caught_up(WAIT_S)
        await whole.caught_up(WAIT_S)
        assert {name: fast.view(name) for name in names} == due
        assert {name: whole.view(name) for name in names} == due
        assert fast.status.cursors == whole.status.cursors
    of_part = {name: [each.committed_id for each in records if name in each.partitions] for name in names}
    expected = {name: [id for id in of_part[name] if id > floors.get(name, 0)] for name in names}
    assert stored(path) == expected
    async with client(NOWHERE, f"fast-{number}", store=path) as again:
        assert {name: again.view(name) for name in names} == due, "a restart works from the file alone"
    connection = apsw.Connection(str(path))
    connection.execute("DELETE FROM snapshots")
    connection.close()
    async with of(server, f"fast-{number}", *names, store=path) as again:
        assert {name: again.view(name) for name in names} == due, "also without snapshots of its own"
        await again.caught_up(WAIT_S)
        assert {name: again.view(name) for name in names} == due


@pytest.mark.req("CLIENT-15", "SYNC-09")
@asynchronous
async def test_a_partition_added_later_starts_from_its_snapshot_too(
    planted: tuple[Server, list[Record], dict[str, int]], tmp_path: Path
) -> None:
    server, records, floors = planted
    first, second, plain = "w2-a", "w2-b", "w2-d"
    assert plain not in floors
    path = tmp_path / "c.db"
    async with of(server, "adder", first, store=path) as one:
        await one.caught_up(WAIT_S)
        await one.add_partition(second)
        await one.add_partition(plain)
        await one.caught_up(WAIT_S)
        for name in (first, second, plain):
            assert one.view(name) == state_of(records, name).tree.dump()
            assert all(id > floors.get(name, 0) for id in stored(path)[name])
        await one.remove_partition(first)
        assert first not in stored(path)
        await one.add_partition(first)
        await one.caught_up(WAIT_S)
        assert one.view(first) == state_of(records, first).tree.dump()
        assert one.view(second) == state_of(records, second).tree.dump()


@pytest.mark.req("CLIENT-15", "CLIENT-03")
@asynchronous
async def test_live_events_and_drafts_stand_on_the_base(
    server: Server, tmp_path: Path, part: str, who: str
) -> None:
    async with of(server, f"{who}-w", part, options=WHOLE) as writer:
        for number in range(30):
            await writer.tree("t").push({"id": f"n{number}"})
        await writer.caught_up(WAIT_S)
        snapshot(server, part)
        await writer.tree("t").update("n3", {"title": "late"})
        await writer.caught_up(WAIT_S)
        path = tmp_path / "c.db"
        async with of(server, who, part, store=path) as reader:
            await reader.caught_up(WAIT_S)
            assert len(stored(path)[part]) == 1
            assert reader.view() == writer.view()
            draft = await reader.tree("t").update("n7", {"title": "mine"})
            await writer.tree("t").delete("n9")
            await reader.caught_up(WAIT_S)
            await writer.caught_up(WAIT_S)
            assert isinstance(await draft.settled(WAIT_S), Committed)
            await until(lambda: reader.view() == writer.view())
            assert len(stored(path)[part]) == 3


@pytest.mark.req("CLIENT-15", "DUR-03")
@asynchronous
async def test_a_draft_committed_below_the_base_is_not_shown_twice(
    server: Server, tmp_path: Path, part: str, who: str
) -> None:
    """Its result was lost, and its event is part of the snapshot: the retry settles it."""
    path, copy = tmp_path / "c.db", tmp_path / "copy.db"
    gate = Gate(server.token(who))
    async with client(server.url, who, part, store=path, token=gate) as one:
        draft = await one.tree("t").push({"id": "mine"})
        await one.pause()
        shutil.copy(path, copy)
        shutil.copy(f"{path}-wal", f"{copy}-wal")
        gate.open()
        await one.resume()
        outcome = await draft.settled(WAIT_S)
        assert isinstance(outcome, Committed)
        await one.set("more", 1)
        await one.caught_up(WAIT_S)
    snapshot(server, part)
    async with of(server, who, part, store=copy) as again:
        (pending,) = await again.pending()
        assert await pending.settled(WAIT_S) == outcome
        await again.caught_up(WAIT_S)
        assert again.view() == {
            "t": {"items": {"mine": {}}, "tree": [{"id": "mine", "children": []}]},
            "more": 1,
        }
    assert stored(copy) == {part: []}


# -- who uses them, and models ---------------------------------------------------------------------------------


@pytest.mark.req("CLIENT-15", "CLIENT-10", "MODEL-03", "DUR-07")
@asynchronous
async def test_canonical_events_with_the_model_and_without(tmp_path: Path) -> None:
    model = write(tmp_path / "model", 1, "event.data")
    old = shutil.copytree(model, tmp_path / "old")
    path, plain_path, old_path = (tmp_path / name for name in ("c.db", "plain.db", "old.db"))
    with running(tmp_path / "d", "--model", str(model), "--access-default", "allow") as server:
        async with canonical(server, "w", model) as writer:
            for number in range(20):
                await writer.event("note.added", {"id": f"n{number}"})
            await writer.caught_up(WAIT_S)
            snapshot(server, "p")
            await writer.event("note.added", {"id": "last"})
            await writer.caught_up(WAIT_S)
            async with (
                canonical(server, "c", model, path) as one,
                canonical(server, "plain", None, plain_path) as plain,
                canonical(server, "o", old, old_path) as late,
            ):
                for each in (one, plain, late):
                    await each.caught_up(WAIT_S)
                assert one.view() == late.view() == writer.view()
                assert (len(stored(path)["p"]), len(stored(old_path)["p"])) == (1, 1)
                assert plain.view() == {}
                assert len(stored(plain_path)["p"]) == 21, "no model to fold with: no event is left out"
                write(tmp_path / "model", 2, "[event.data]")
                reload(server)
                await until(lambda: one.status.model_version == late.status.model_version == 2)
                for each in (one, late):
                    await each.caught_up(WAIT_S)
                due = {f"n{number}": [{"id": f"n{number}"}] for number in range(20)} | {
                    "last": [{"id": "last"}]
                }
                assert notes(one) == due, "no snapshot of the new model yet: all of it came"
                assert len(stored(path)["p"]) == 21
                assert late.status.last_error is not None
                assert late.status.last_error.code == "model_mismatch"
                assert len(stored(old_path)["p"]) == 21, "another model than the server's: all of it"
                assert notes(late) == {key: value[0] for key, value in due.items()}
            snapshot(server, "p")
        async with canonical(server, "new", model, tmp_path / "new.db") as new:
            await new.caught_up(WAIT_S)
            assert notes(new) == due
        assert stored(tmp_path / "new.db") == {"p": []}
        # The client's own model becomes another: what was folded by the old one is fetched again, all of it.
        write(tmp_path / "model", 2, "[event.data, 'same version, other content']")
        async with canonical(server, "new", model, tmp_path / "new.db") as new:
            await new.caught_up(WAIT_S)
            assert notes(new) == {key: [*value, "same version, other content"] for key, value in due.items()}
            assert new.status.last_error is not None
            assert new.status.last_error.code == "model_mismatch"
            assert "another content" in new.status.last_error.message
        assert len(stored(tmp_path / "new.db")["p"]) == 21, "the server's snapshot is of another content"


@pytest.mark.req("CLIENT-15", "CLIENT-10")
@asynchronous
async def test_after_version_changed_snapshots_of_the_new_version_are_taken(tmp_path: Path) -> None:
    model = write(tmp_path / "model", 1, "event.data")
    path = tmp_path / "c.db"
    with running(tmp_path / "d", "--model", str(model), "--access-default", "allow") as server:
        async with canonical(server, "w", model) as writer:
            for number in range(10):
                await writer.event("note.added", {"id": f"n{number}"})
            await writer.caught_up(WAIT_S)
        snapshot(server, "p")
        async with canonical(server, "c", model, path) as one:
            await one.caught_up(WAIT_S)
            assert stored(path) == {"p": []}
            await one.pause()
            write(tmp_path / "model", 2, "[event.data]")
            reload(server)
            snapshot(server, "p")
            await one.resume()
            await one.caught_up(WAIT_S)
            assert notes(one) == {f"n{number}": [{"id": f"n{number}"}] for number in range(10)}
            assert stored(path) == {"p": []}, "from the new snapshot"
            assert one.status.cursor == 10
