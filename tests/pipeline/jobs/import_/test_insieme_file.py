"""The SQLite file of the JavaScript library, in each of its versions."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.jobs.import_.source_files import MODEL, SET, event_of, good, source
from unisono.model.partition import PartitionState
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.jobs.import_ import insieme_file as insieme
from unisono.pipeline.jobs.import_.judge import Judge
from unisono.pipeline.jobs.import_.outcomes import RefusedRow
from unisono.pipeline.jobs.import_.rows import SourceRow
from unisono.pipeline.jobs.import_.sources import FieldMapping
from unisono.protocol.canonical import canonical

DRAFT = """
CREATE TABLE committed_events (committed_id INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, client_id TEXT NOT NULL,
  partitions TEXT NOT NULL, event TEXT NOT NULL, status_updated_at INTEGER NOT NULL);
"""
FIRST = """
CREATE TABLE committed_events (committed_id INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
  project_id TEXT, user_id TEXT, partitions TEXT NOT NULL, type TEXT NOT NULL, payload TEXT NOT NULL,
  meta TEXT NOT NULL, created INTEGER NOT NULL);
"""
SECOND = """
CREATE TABLE committed_events (committed_id INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
  project_id TEXT NOT NULL, user_id TEXT, partition TEXT NOT NULL, type TEXT NOT NULL,
  schema_version INTEGER NOT NULL, payload BLOB NOT NULL, payload_compression TEXT DEFAULT NULL,
  client_ts INTEGER NOT NULL, server_ts INTEGER NOT NULL, created_at INTEGER NOT NULL);
"""


def library_file(path: Path, schema: str, *rows: tuple[Any, ...], **names: str) -> list[SourceRow]:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(schema)
        for values in rows:
            marks = ", ".join("?" * len(values))
            connection.execute(f"INSERT INTO committed_events VALUES ({marks})", values)
        connection.commit()
    splits = insieme.splits(0, source(path, "insieme-sqlite"), FieldMapping(names), 2)
    return [each for split in splits for each in insieme.read(split, FieldMapping(names))]


def test_the_library_in_its_draft(tmp_path: Path) -> None:
    rows = library_file(
        tmp_path / "a.db",
        DRAFT,
        (3, "e3", "c", '["b","a"]', json.dumps(SET), 30),
        (4, "e4", "c", '["b"]', "{", 40),
        (9, "e9", "c", "nonsense", json.dumps(SET), 90),
    )
    assert [each.number for each in rows] == [3, 4, 9]
    event = good(rows[0])
    assert (event.committed_id, event.partitions, event.client_id, event.time) == (3, ("a", "b"), "c", 30)
    assert [each.reason for each in map(event_of, rows[1:]) if isinstance(each, RefusedRow)] == [
        "bad_event",
        "unreadable",
    ]


def test_the_library_in_its_first_version(tmp_path: Path) -> None:
    meta = json.dumps({"clientId": "laptop", "clientTs": 7})
    (row,) = library_file(
        tmp_path / "a.db",
        FIRST,
        (1, "e1", "proj", "user", '["p"]', "treePush", '{"target":"t","value":{"id":"x"}}', meta, 10),
    )
    event = good(row)
    assert (event.client_id, event.time) == ("laptop", 10)
    assert event.event == canonical({"type": "treePush", "payload": {"target": "t", "value": {"id": "x"}}})


def test_the_library_in_its_second_version(tmp_path: Path) -> None:
    rows = library_file(
        tmp_path / "a.db",
        SECOND,
        (1, "e1", "proj", "ann", "room", "task.created", 2, b'{"title":"x"}', None, 7, 11, 12),
        (2, "e2", "proj", None, "room", "set", 1, b'{"target":"a","value":1}', None, 8, 21, 22),
        (3, "e3", "proj", None, "room", "task.created", 2, b"\x28\xb5", "zstd", 8, 31, 32),
    )
    event = good(rows[0])
    assert (event.client_id, event.partitions, event.time, event.migrated) == ("ann", ("room",), 11, True)
    assert json.loads(event.event) == {
        "type": "event",
        "payload": {
            "schema": "task.created",
            "data": {"title": "x"},
            "meta": {"project_id": "proj", "user_id": "ann", "schema_version": 2, "client_ts": 7},
        },
    }
    assert good(rows[1]).client_id == "import"
    assert good(rows[1]).event == canonical(SET)
    refused = event_of(rows[2])
    assert isinstance(refused, RefusedRow)
    assert "zstd" in refused.message


@pytest.mark.req("TREE-03", "TREE-04", "TREE-11")
def test_a_state_of_the_library_whose_items_carry_their_ids(tmp_path: Path) -> None:
    """The event is imported as it stands; the state it makes is that of one without the ids."""
    items = {"A": {"id": "A", "name": "a"}, "B": {"id": "B"}}
    nodes = [{"id": id, "children": []} for id in items]
    init = {"value": {"explorer": {"items": items, "tree": nodes}}}
    push = {"target": "explorer", "value": {"id": "C"}, "options": {"parent": None, "position": None}}
    rows = library_file(
        tmp_path / "a.db",
        SECOND,
        (1, "e1", "proj", "ann", "room", "init", 1, json.dumps(init).encode(), None, 7, 11, 12),
        (2, "e2", "proj", "ann", "room", "treePush", 1, json.dumps(push).encode(), None, 7, 11, 12),
    )
    events = [good(each) for each in rows]
    assert json.loads(events[0].event)["payload"] == init
    judge, state = Judge(MODEL, None, 0), PartitionState()
    judge.enter(1)
    for each in events:
        assert judge.judge(each.event, each.partitions) is None
        assert MODEL.apply_committed(state, json.loads(each.event))
    tree: Any = state.dump()["tree"]
    assert tree["explorer"]["items"] == {"A": {"name": "a"}, "B": {}, "C": {}}
    assert [node["id"] for node in tree["explorer"]["tree"]] == ["C", "A", "B"]


def test_projects_of_the_library_as_partitions(tmp_path: Path) -> None:
    values = (1, "e1", "proj", "ann", "room", "set", 2, b'{"target":"a","value":1}', None, 7, 11, 12)
    (row,) = library_file(tmp_path / "a.db", SECOND, values, partition="project_id")
    assert good(row).partitions == ("proj",)


@pytest.mark.timeout(30)
def test_committed_ids_of_the_library_far_apart(tmp_path: Path) -> None:
    rows = [(id, f"e{id}", "c", '["p"]', json.dumps(SET), 1) for id in (1, 2, 3, 10**15, 2**53)]
    found = library_file(tmp_path / "a.db", DRAFT, *rows)
    assert [each.number for each in found] == [1, 2, 3, 10**15, 2**53]
    refused = event_of(found[-1])
    assert isinstance(refused, RefusedRow)
    assert refused.reason == "bad_committed_id"


def test_a_file_of_the_library_that_is_in_use(tmp_path: Path) -> None:
    """What its server commits into the write-ahead log is read, and makes it another file than before."""
    path = tmp_path / "a.db"
    values = "VALUES (?, ?, 'c', '[\"p\"]', '{}', 1)"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"PRAGMA journal_mode=WAL; {DRAFT}")
        connection.execute(f"INSERT INTO committed_events {values}", (1, "e1"))
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        before = source(path, "insieme-sqlite")
        connection.execute(f"INSERT INTO committed_events {values}", (2, "e2"))
        connection.commit()
        now = source(path, "insieme-sqlite")
        assert now != before
        (split,) = insieme.splits(0, now, FieldMapping())
        assert [each.id for each in insieme.read(split, FieldMapping())] == ["e1", "e2"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda path: sqlite3.connect(path).executescript(
                "CREATE VIEW committed_events AS SELECT 1 AS committed_id, 'a' AS id, '{}' AS event"
            ),
            "committed_events in .* cannot be read",
        ),
        (lambda path: path.write_text("hello, this is no database at all"), "cannot be read as SQLite"),
        (
            lambda path: sqlite3.connect(path).execute("CREATE TABLE other (x)"),
            "has no table committed_events",
        ),
    ],
)
def test_files_that_are_not_the_library_s(tmp_path: Path, make: Callable[[Path], Any], says: str) -> None:
    path = tmp_path / "a.db"
    made = make(path)
    if isinstance(made, sqlite3.Cursor):
        made.connection.close()
    with pytest.raises(PipelineError, match=says):
        insieme.splits(0, source(path, "insieme-sqlite"), FieldMapping())
