"""What each format makes of its files, row by row; no Spark needed to read them."""

from __future__ import annotations

import csv
import gzip
import json
import os
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.model.model import open_model
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.importing import insieme, jsonl, tabular
from unisono.pipeline.importing.judging import Components
from unisono.pipeline.importing.outcomes import Refused
from unisono.pipeline.importing.rows import Event, Row, to_event
from unisono.pipeline.importing.sources import Mapped, Source, Split, find
from unisono.protocol.canonical import canonical

MODEL = open_model()
SET: Any = {"type": "set", "payload": {"target": "a", "value": 1}}


def event_of(row: Row) -> Event | Refused:
    return to_event(row, MODEL, "import")


def good(row: Row) -> Event:
    event = event_of(row)
    assert isinstance(event, Event), event
    return event


def source(path: Path, format: str = "jsonl") -> Source:
    return find([path], format)[0]


# -- rows ------------------------------------------------------------------------------------------------------


def row(**values: Any) -> Row:
    whole: dict[str, Any] = {"id": "e", "partitions": ["p"], "event": json.dumps(SET).encode()}
    return Row(1, **(whole | values))


@pytest.mark.req("PART-05")
@pytest.mark.parametrize(
    ("partitions", "partition", "comes_to"),
    [
        (["b", "a", "b"], None, ("a", "b")),
        (None, "a", ("a",)),
        (["a", "a"], "a", ("a",)),
        (["e\u0301"], "\u00e9", ("\u00e9",)),
        (["a", "b"], "a", "partition_disagrees"),
        (["A"], "a", "partition_disagrees"),
        (None, None, "bad_partitions"),
        ([], "a", "bad_partitions"),
        (None, "", "bad_partitions"),
        (None, 7, "bad_partitions"),
        ("a", None, "bad_partitions"),
        (["x" * 129], None, "bad_partitions"),
    ],
)
def test_the_legacy_partition(partitions: Any, partition: Any, comes_to: Any) -> None:
    event = event_of(row(partitions=partitions, partition=partition))
    assert (event.reason if isinstance(event, Refused) else event.partitions) == comes_to


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"id": None}, "bad_id"),
        ({"id": ""}, "bad_id"),
        ({"id": "é" * 65}, "bad_id"),
        ({"id": "\ud800"}, "bad_id"),
        ({"client_id": ""}, "bad_client_id"),
        ({"client_id": 5}, "bad_client_id"),
        ({"committed_id": 0}, "bad_committed_id"),
        ({"committed_id": True}, "bad_committed_id"),
        ({"committed_id": 1.5}, "bad_committed_id"),
        ({"time": "yesterday"}, "bad_time"),
        ({"time": -1}, "bad_time"),
        ({"event": None}, "bad_event"),
        ({"event": b"[]"}, "bad_event"),
        ({"event": b'{"a":1,"a":2}'}, "bad_event"),
        ({"event": b'{"a":"\xff"}'}, "bad_event"),
        ({"event": b"[" * 63 + b"]" * 63}, "too_deep"),
        (
            {"event": b'{"type":"set","payload":{"target":"a","value":"%b"}}' % (b"x" * (1 << 20))},
            "too_large",
        ),
        ({"event": b'{"type":"what"}'}, "shape"),
        ({"fault": Refused("unreadable", "so")}, "unreadable"),
    ],
)
def test_what_no_server_would_take(values: dict[str, Any], reason: str) -> None:
    event = event_of(row(**values))
    assert isinstance(event, Refused)
    assert event.reason == reason
    assert event.message


@pytest.mark.parametrize(
    ("time", "milliseconds"),
    [
        (1_700_000_000_000, 1_700_000_000_000),
        (1.7e12, 1_700_000_000_000),
        ("1700000000000", 1_700_000_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14 23:13:20.5+01:00", 1_700_000_000_500),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
    ],
)
def test_times(time: Any, milliseconds: int) -> None:
    assert good(row(time=time)).time == milliseconds


# -- JSON lines --------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["", "x", '"', "é🎻", "y" * 40]), max_size=30),
    st.integers(1, 60),
    st.booleans(),
)
def test_splits_read_every_line_once(texts: list[str], size: int, ends: bool) -> None:
    """Wherever a file is cut, each line is read by one task, under its own number."""
    lines = [json.dumps({"id": text}, ensure_ascii=False) if text else "" for text in texts]
    content = "\n".join(lines).encode() + (b"\n" if ends else b"")
    path = Path(tempfile.gettempdir(), f"unisono-lines-{os.getpid()}.jsonl")
    path.write_bytes(content)
    try:
        splits = jsonl.splits(0, source(path), size)
        before, found = 0, []
        for split in splits:
            numbered = Split(0, split.path, split.format, split.start, split.end, before)
            found += [(each.number, each.id) for each in jsonl.read(numbered, Mapped())]
            before += jsonl.count_lines(split)
    finally:
        path.unlink()
    assert found == [(number, text) for number, text in enumerate(texts, 1) if text]


def test_lines_in_every_shape(tmp_path: Path) -> None:
    lines = [
        {"id": "1", "partitions": ["p"], "event": SET, "extra": [1, 2]},
        {"id": "2", "partition": "p", "type": "set", "payload": SET["payload"]},
        {"id": "3", "partition": "p", "schema": "note", "data": {"n": 1}, "meta": {"a": 1}},
        {"id": "4", "partition": "p", "schema": "note"},
        {"id": "5", "partition": "p"},
    ]
    text = "\ufeff" + "\n".join(map(json.dumps, lines)) + "\r\n\n   \n"
    plain, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz"
    plain.write_bytes(text.encode())
    packed.write_bytes(gzip.compress(text.encode()))
    for path in (plain, packed):
        rows = list(jsonl.read(jsonl.splits(0, source(path))[0], Mapped()))
        assert [each.number for each in rows] == [1, 2, 3, 4, 5]
        events = [event_of(each) for each in rows]
        assert [event.event for event in events[:4] if isinstance(event, Event)] == [
            canonical(SET),
            canonical(SET),
            canonical({"type": "event", "payload": {"schema": "note", "data": {"n": 1}, "meta": {"a": 1}}}),
            canonical({"type": "event", "payload": {"schema": "note", "data": None}}),
        ]
        assert isinstance(events[4], Refused)


def test_lines_with_other_names_and_lines_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "LINE_BYTES_MAX", 200)
    path = tmp_path / "a.jsonl"
    line = json.dumps({"uuid": "1", "room": "p", "event": SET, "at": 5, "user": "u"})
    path.write_text(f"{line}\n" + "x" * 5_000 + f"\n{line}\n")
    names = {"id": "uuid", "partition": "room", "status_updated_at": "at", "client_id": "user"}
    rows = list(jsonl.read(jsonl.splits(0, source(path))[0], Mapped(names)))
    assert [each.number for each in rows] == [1, 2, 3]
    event = good(rows[2])
    assert (event.id, event.partitions, event.time, event.client_id) == ("1", ("p",), 5, "u")
    refused = event_of(rows[1])
    assert isinstance(refused, Refused)
    assert refused.reason == "unreadable"


# -- Parquet and CSV ---------------------------------------------------------------------------------------------


def test_parquet_in_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = [
        {"id": str(n), "partitions": ["p", "q"], "event": json.dumps(SET), "status_updated_at": n + 1}
        for n in range(95)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=10)
    splits = tabular.parquet_splits(0, source(path, "parquet"), 25)
    assert len(splits) == 4
    found = [each for split in splits for each in tabular.read_parquet(split, Mapped())]
    assert [(each.number, each.id) for each in found] == [(n + 1, str(n)) for n in range(95)]
    assert good(found[50]).time == 51


def test_parquet_with_nested_values_and_moments(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table(
        {
            "key": ["1", "2"],
            "room": ["p", "p"],
            "schema": ["note", "note"],
            "data": [{"n": 1.5, "ok": True}, {"n": float("nan"), "ok": None}],
            "at": pa.array([1_700_000_000_000, None], pa.timestamp("ms", "UTC")),
        }
    )
    pq.write_table(table, path)
    names = Mapped({"id": "key", "partition": "room", "status_updated_at": "at"})
    (split,) = tabular.parquet_splits(0, source(path, "parquet"))
    rows = list(tabular.read_parquet(split, names))
    event = good(rows[0])
    assert event.time == 1_700_000_000_000
    assert event.event == b'{"payload":{"data":{"n":1.5,"ok":true},"schema":"note"},"type":"event"}'
    refused = event_of(rows[1])
    assert isinstance(refused, Refused), "NaN is not silently made something else"
    assert refused.reason == "bad_event"


def test_csv_with_a_mapping(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["key", "rooms", "what", "kind", "who"])
        writer.writerow(["1", '["b","a"]', json.dumps({"text": 'a, "b"'}, indent=1), "note", "ann"])
        writer.writerow(["2", "no array", "{}", "note", ""])
        writer.writerow(["3", '["a"]', '1},"extra":{', "note", ""])
        writer.writerow(["4", '["a"]', "{}", "note", "", "too", "many"])
        writer.writerow(["5", '["a"]', "{}", "", ""])
    names = Mapped({"id": "key", "partitions": "rooms", "data": "what", "schema": "kind", "client_id": "who"})
    tabular.require_columns(source(path, "csv"), names)
    rows = list(tabular.read_csv(Split(0, str(path), "csv"), names))
    assert [each.number for each in rows] == [4, 5, 6, 7, 8]
    event = good(rows[0])
    assert (event.partitions, event.client_id) == (("a", "b"), "ann")
    assert json.loads(event.event)["payload"] == {"schema": "note", "data": {"text": 'a, "b"'}}
    refused = [event_of(each) for each in rows[1:]]
    assert [each.reason for each in refused if isinstance(each, Refused)] == [
        "bad_partitions",
        "bad_event",
        "unreadable",
        "bad_event",
    ]


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(PipelineError, match="no column 'c' for id"):
        tabular.require_columns(source(path, "csv"), Mapped({"id": "c"}))
    with pytest.raises(PipelineError, match="--map partitions=COLUMN"):
        tabular.require_columns(source(path, "csv"), Mapped({"id": "a", "event": "b"}))


# -- the JavaScript library's SQLite file --------------------------------------------------------------------------

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


def library_file(path: Path, schema: str, *rows: tuple[Any, ...], **names: str) -> list[Row]:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(schema)
        for values in rows:
            marks = ", ".join("?" * len(values))
            connection.execute(f"INSERT INTO committed_events VALUES ({marks})", values)
        connection.commit()
    splits = insieme.splits(0, source(path, "insieme-sqlite"), Mapped(names), 2)
    return [each for split in splits for each in insieme.read(split, Mapped(names))]


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
    assert [each.reason for each in map(event_of, rows[1:]) if isinstance(each, Refused)] == [
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
    assert isinstance(refused, Refused)
    assert "zstd" in refused.message


def test_projects_of_the_library_as_partitions(tmp_path: Path) -> None:
    values = (1, "e1", "proj", "ann", "room", "set", 2, b'{"target":"a","value":1}', None, 7, 11, 12)
    (row,) = library_file(tmp_path / "a.db", SECOND, values, partition="project_id")
    assert good(row).partitions == ("proj",)


@pytest.mark.parametrize(
    ("make", "says"),
    [
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
        insieme.splits(0, source(path, "insieme-sqlite"), Mapped())


# -- components --------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 30), min_size=2, max_size=4), max_size=25))
def test_components_are_what_hangs_together(links: list[list[int]]) -> None:
    found = Components()
    for link in links:
        found.link(link)
    leaders = found.leaders()
    reached = {number: {number} for link in links for number in link}
    for _ in range(len(reached)):
        for link in links:
            together = set().union(*(reached[number] for number in link))
            for number in together:
                reached[number] = reached[number] | together
    assert leaders == {number: min(group) for number, group in reached.items()}
