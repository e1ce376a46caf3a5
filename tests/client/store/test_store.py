"""The client's file: drafts before anything else, each event once, cursors with their events."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from tests.client.store.opening import draft, held, opened
from tests.client.sync.driving import event
from unisono.client.errors import StoreForeign, StoreInUse, StoreTooNew
from unisono.client.store.rows import ViewSnapshot
from unisono.client.store.statements import SCHEMA, SCHEMA_VERSION
from unisono.client.store.store import Store, StoreContradiction
from unisono.client.sync.inputs_effects import Accepted, StartState

# -- the file ----------------------------------------------------------------------------------------------


def test_a_second_client_is_told_that_the_store_is_in_use(path: Path) -> None:
    first = opened(path)
    with pytest.raises(StoreInUse, match="in use by another client"):
        opened(path)
    first.close()
    opened(path).close()


def test_a_second_process_is_told_so_too_and_a_killed_one_lets_go(path: Path) -> None:
    code = f"from unisono.client.store.store import Store; s = Store({str(path)!r}, 'me'); print('open', flush=True)"
    code += "; input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(StoreInUse):
            opened(path)
        other.kill()
        other.wait()
    opened(path).close()


def test_a_child_process_does_not_inherit_the_lock(path: Path) -> None:
    store = opened(path)
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:  # the child outlives its parent's store
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    store.close()
    try:
        opened(path).close()
    finally:
        os.close(writer)
        os.close(reader)
        os.waitpid(child, 0)


def test_a_store_belongs_to_one_client(path: Path) -> None:
    opened(path).close()
    with pytest.raises(StoreForeign, match="belongs to client_id 'me', not 'you'"):
        opened(path, "you")
    opened(path).close()


def test_a_newer_schema_is_refused(path: Path) -> None:
    opened(path).close()
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", 99)
    connection.close()
    with pytest.raises(StoreTooNew, match="upgrade the library"):
        opened(path)


@pytest.mark.parametrize("content", ["sql", "text"])
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.db"
    if content == "sql":
        connection = apsw.Connection(str(path))
        connection.execute("CREATE TABLE recipes (name)")
        connection.close()
    else:
        path.write_text("certainly not a database, but long enough to be read as one" * 10)
    before = path.read_bytes()
    with pytest.raises(StoreForeign, match="give the client another file"):
        opened(path)
    assert path.read_bytes() == before


def test_a_store_in_memory_needs_no_file() -> None:
    store = Store(":memory:", "me")
    store.follow("p")
    store.apply([event(1)], cursors={"p": 1})
    assert held(store) == [1]


# -- committed events --------------------------------------------------------------------------------------


@pytest.mark.req("CLIENT-04")
def test_an_event_is_stored_once_however_often_it_comes(path: Path) -> None:
    store = opened(path)
    assert store.apply([event(2), event(1)]).events.keys() == {"p"}
    again = store.apply([event(1), event(2), event(1)], cursors={"p": 2})
    assert not again.events
    assert held(store) == [1, 2]


@pytest.mark.req("CLIENT-05")
def test_events_and_cursor_are_there_together_after_reopening(path: Path) -> None:
    store = opened(path)
    store.apply([event(1), event(3)], cursors={"p": 3})
    store.close()
    store = opened(path)
    assert store.followed["p"].cursor == 3
    assert held(store) == [1, 3]


@pytest.mark.req("CLIENT-12")
@pytest.mark.parametrize("contradiction", [event(2, id="another"), event(7, id="e2")])
def test_a_contradiction_changes_nothing(path: Path, contradiction: object) -> None:
    store = opened(path)
    draft(store, "d")
    store.apply([event(2)], cursors={"p": 2})
    with pytest.raises(StoreContradiction, match="is stored as 2"):
        store.apply([event(3), contradiction], [Accepted("d", 9, 1)], cursors={"p": 9})  # type: ignore[list-item]
    assert held(store) == [2]
    assert store.followed["p"].cursor == 2
    assert "d" in store.outbox.pending


def test_only_followed_partitions_are_kept(path: Path) -> None:
    store = opened(path, "me", "p", "q")
    store.apply([event(1, "p", "x"), event(2, "x"), event(3, "p", "q")])
    assert held(store, "p") == [1, 3]
    assert held(store, "q") == [3]
    assert not store.committed("e2")


def test_a_partition_added_later_gets_events_that_are_there_already(path: Path) -> None:
    store = opened(path)
    store.apply([event(1, "p", "q")])
    store.follow("q")
    assert held(store, "q") == []
    assert store.apply([event(1, "p", "q")]).events.keys() == {"q"}
    assert held(store, "q") == [1]


def test_leaving_a_partition_drops_what_no_other_one_has(path: Path) -> None:
    store = opened(path, "me", "p", "q")
    store.apply([event(1, "p"), event(2, "p", "q")], cursors={"p": 2, "q": 2})
    store.leave("p")
    assert not store.committed("e1")
    assert held(store, "q") == [2]
    assert store.follow("p").cursor == 0


def test_a_partition_not_followed_for_a_while_goes_on_from_its_cursor(path: Path) -> None:
    store = opened(path, "me", "p", "q")
    store.apply([event(1, "q")], cursors={"q": 5})
    store.close()
    store = opened(path, "me", "p")
    store.apply([event(6, "p", "q")], cursors={"p": 6})
    assert store.follow("q").cursor == 5
    assert held(store, "q") == [1]


def test_an_event_below_what_was_complete_makes_the_snapshot_void(path: Path) -> None:
    store = opened(path)
    store.apply([event(1), event(5)], cursors={"p": 5})
    store.put_snapshot("p", ViewSnapshot(5, "m", b"{}"))
    store.apply([event(7)])
    assert store.snapshot("p", "m")
    store.apply([event(3)])
    assert store.snapshot("p", "m") is None


# -- bases -------------------------------------------------------------------------------------------------


@pytest.mark.req("CLIENT-15", "CLIENT-05")
def test_a_base_stands_for_the_events_up_to_its_floor(path: Path) -> None:
    store = opened(path, "me", "p", "q")
    applied = store.apply(
        [event(3, "p", "q"), event(5, "p", "q"), event(9, "p")],
        cursors={"p": 9, "q": 9},
        starts={"p": StartState(4, b"{}"), "q": StartState(7, b"[]")},
        model_version="m",
    )
    assert applied.started == ["p", "q"]
    assert {name: [each.committed_id for each in of] for name, of in applied.events.items()} == {"p": [5, 9]}
    assert (held(store, "p"), held(store, "q")) == ([5, 9], [])
    store.close()
    store = opened(path, "me", "p", "q")
    assert store.base("p") == ViewSnapshot(4, "m", b"{}")
    assert store.base("q") == ViewSnapshot(7, "m", b"[]")
    assert (store.followed["p"].floor, store.followed["p"].known, store.followed["p"].cursor) == (4, 9, 9)
    store.apply([event(2, "p", "q"), event(8, "q")])
    assert (held(store, "p"), held(store, "q")) == ([5, 9], [8]), "at or below a floor nothing counts"


@pytest.mark.req("CLIENT-15", "CLIENT-10")
@pytest.mark.parametrize(
    ("base", "kept", "known"),
    [
        (StartState(6, b"new"), [8, 9], 9),
        (StartState(20, b"new"), [], 20),
        (StartState(3, b"new"), [], 3),
        (None, [], 0),
    ],
    ids=["newer", "newer than all", "older", "none"],
)
def test_a_new_start_replaces_a_base(
    path: Path, base: StartState | None, kept: list[int], known: int
) -> None:
    """What is stored above a newer base is all there is; above an older one something is missing."""
    store = opened(path)
    store.apply([event(n) for n in (5, 6, 8, 9)], cursors={"p": 9}, starts={"p": StartState(4, b"old")})
    store.put_snapshot("p", ViewSnapshot(9, "m", b"{}"))
    store.rewind(2)
    store.apply([], starts={"p": base}, model_version="n")
    store.close()
    store = opened(path)
    assert held(store) == kept
    assert (store.followed["p"].known, store.followed["p"].floor) == (known, base.committed_id if base else 0)
    assert store.base("p") == (base and ViewSnapshot(base.committed_id, "n", b"new"))
    assert store.snapshot("p", "m") is None


@pytest.mark.req("CLIENT-12", "CLIENT-15")
def test_a_clash_leaves_the_start_as_it_was(path: Path) -> None:
    store = opened(path, "me", "p", "q")
    store.apply([event(5, "p")], cursors={"p": 5})
    with pytest.raises(StoreContradiction):
        store.apply([event(5, "q", id="other")], starts={"p": StartState(3, b"{}")}, cursors={"q": 5})
    assert (store.followed["p"].floor, store.base("p"), held(store)) == (0, None, [5])
    store.apply([], starts={"p": StartState(3, b"{}")})
    store.reset()
    assert (store.followed["p"].floor, store.base("p"), held(store)) == (0, None, [])


@pytest.mark.req("CLIENT-15", "DUR-07")
def test_a_base_of_another_model_is_to_be_fetched_again(path: Path) -> None:
    store = opened(path, "me", "p", "q")
    for name, model in (("p", "m/1"), ("q", "m/2")):
        store.apply([], starts={name: StartState(4, b"{}")}, cursors={name: 9}, model_version=model)
    store.rewind_stale("m/2")
    assert {name: place.cursor for name, place in store.followed.items()} == {"p": 0, "q": 9}
    store.close()
    store = opened(path, "me", "p", "q")
    assert {name: place.cursor for name, place in store.followed.items()} == {"p": 0, "q": 9}
    store.leave("p")
    assert store.follow("p").floor == 0
    assert store.base("p") is None


def test_a_store_of_the_first_schema_is_brought_up_to_date(path: Path) -> None:
    store = opened(path)
    draft(store, "d")
    store.apply([event(1)], cursors={"p": 1})
    store.close()
    connection = apsw.Connection(str(path))
    connection.execute(
        "DROP TRIGGER drafts_inserted; DROP TRIGGER drafts_updated;"
        "DROP TRIGGER partitions_inserted; DROP TRIGGER partitions_updated;"
        "DROP TABLE bases; ALTER TABLE partitions DROP COLUMN floor;"
        "ALTER TABLE drafts DROP COLUMN status_updated_at; ALTER TABLE drafts DROP COLUMN batch;"
        "ALTER TABLE events DROP COLUMN author;"
        "PRAGMA user_version = 1"
    )
    for table in ("drafts", "partitions", "events", "snapshots"):
        connection.execute(f"ALTER TABLE {table} DROP COLUMN checksum")
    connection.close()
    store = opened(path)
    assert (held(store), store.followed["p"].cursor, store.followed["p"].floor) == ([1], 1, 0)
    assert "d" in store.outbox.pending
    store.apply([event(7)], starts={"p": StartState(4, b"{}")}, cursors={"p": 7})
    store.close()
    connection = apsw.Connection(str(path))
    assert connection.pragma("user_version") == SCHEMA_VERSION
    new = apsw.Connection(":memory:")
    new.execute(SCHEMA)
    assert columns(connection) == columns(new)
    connection.close()


def columns(connection: apsw.Connection) -> list[tuple[object, ...]]:
    """Every column, and the text of every trigger."""
    return connection.execute(
        "SELECT s.name, c.name, c.type, c.\"notnull\", iif(s.type = 'trigger', s.sql, '') FROM sqlite_schema s"
        " LEFT JOIN pragma_table_info(s.name) c WHERE s.type IN ('table', 'trigger') ORDER BY s.name, c.cid"
    ).fetchall()


# -- starting over -----------------------------------------------------------------------------------------


@pytest.mark.req("CLIENT-10")
def test_another_model_takes_cursors_and_snapshots_and_nothing_else(path: Path) -> None:
    store = opened(path)
    draft(store, "d")
    store.apply([event(1)], cursors={"p": 1})
    store.put_snapshot("p", ViewSnapshot(1, "m", b"{}"))
    store.rewind(4)
    store.close()
    store = opened(path)
    assert store.followed["p"].cursor == 0
    assert store.followed["p"].known == 1
    assert store.snapshot("p", "m") is None
    assert held(store) == [1]
    assert "d" in store.outbox.pending
    assert store.notes.model() == (True, 4, None)


@pytest.mark.req("CLIENT-11", "CLIENT-12")
def test_a_reset_keeps_drafts_only(path: Path) -> None:
    store = opened(path)
    draft(store, "d")
    store.apply([event(1)], cursors={"p": 1})
    store.reset()
    store.close()
    store = opened(path)
    assert (store.followed["p"].cursor, store.followed["p"].known) == (0, 0)
    assert held(store) == []
    assert "d" in store.outbox.pending


def test_a_snapshot_of_another_model_is_not_used(path: Path) -> None:
    store = opened(path)
    store.put_snapshot("p", ViewSnapshot(1, "tasks/3", b"{}"))
    assert store.snapshot("p", "tasks/4") is None
    assert store.snapshot("p", "tasks/3") == ViewSnapshot(1, "tasks/3", b"{}")
