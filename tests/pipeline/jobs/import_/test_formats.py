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
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from unisono.model.model import open_model
from unisono.model.partition import PartitionState
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.import_ import insieme_file as insieme
from unisono.pipeline.jobs.import_ import json_lines as jsonl
from unisono.pipeline.jobs.import_ import tabular
from unisono.pipeline.jobs.import_.judge import Components, Judge
from unisono.pipeline.jobs.import_.outcomes import RefusedRow
from unisono.pipeline.jobs.import_.read_split import ReadTask, run_task
from unisono.pipeline.jobs.import_.rows import ImportedEvent, SourceRow, to_event
from unisono.pipeline.jobs.import_.sources import FieldMapping, SourceFile, Split, find
from unisono.protocol.canonical import canonical

MODEL = open_model()
SET: Any = {"type": "set", "payload": {"target": "a", "value": 1}}


def event_of(row: SourceRow) -> ImportedEvent | RefusedRow:
    return to_event(row, MODEL, "import")


def good(row: SourceRow) -> ImportedEvent:
    event = event_of(row)
    assert isinstance(event, ImportedEvent), event
    return event


def source(path: Path, format: str = "jsonl") -> SourceFile:
    return find([path], format)[0]


# -- rows ------------------------------------------------------------------------------------------------------


def row(**values: Any) -> SourceRow:
    whole: dict[str, Any] = {"id": "e", "partitions": ["p"], "event": json.dumps(SET).encode()}
    return SourceRow(1, **(whole | values))


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
        ('["b","a"]', None, ("a", "b")),
        ('"a"', None, "bad_partitions"),
        ("[" * 2_000, None, "bad_partitions"),
        (["x" * 129], None, "bad_partitions"),
    ],
)
def test_the_legacy_partition(partitions: Any, partition: Any, comes_to: Any) -> None:
    event = event_of(row(partitions=partitions, partition=partition))
    assert (event.reason if isinstance(event, RefusedRow) else event.partitions) == comes_to


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"id": None}, "bad_id"),
        ({"id": ""}, "bad_id"),
        ({"id": "é" * 65}, "bad_id"),
        ({"id": "\ud800"}, "bad_id"),
        ({"client_id": ""}, "bad_client_id"),
        ({"client_id": 5}, "bad_client_id"),
        ({"client_id": "x" * 257}, "bad_client_id"),
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
        ({"fault": RefusedRow("unreadable", "so")}, "unreadable"),
    ],
)
def test_what_no_server_would_take(values: dict[str, Any], reason: str) -> None:
    event = event_of(row(**values))
    assert isinstance(event, RefusedRow)
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
            found += [(each.number, each.id) for each in jsonl.read(numbered, FieldMapping())]
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
        {"id": "5", "partition": "p", "schema": "note", "event": None, "data": None, "meta": None},
        {"id": "6", "partition": "p", "event": json.dumps(SET)},
        {"id": "7", "partition": "p"},
    ]
    text = "\ufeff" + "\n".join(map(json.dumps, lines)) + "\r\n\n   \n"
    plain, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz"
    plain.write_bytes(text.encode())
    packed.write_bytes(gzip.compress(text.encode()))
    for path in (plain, packed):
        rows = list(jsonl.read(jsonl.splits(0, source(path))[0], FieldMapping()))
        assert [each.number for each in rows] == [1, 2, 3, 4, 5, 6, 7]
        events = [event_of(each) for each in rows]
        assert [event.event for event in events[:6] if isinstance(event, ImportedEvent)] == [
            canonical(SET),
            canonical(SET),
            canonical({"type": "event", "payload": {"schema": "note", "data": {"n": 1}, "meta": {"a": 1}}}),
            canonical({"type": "event", "payload": {"schema": "note", "data": None}}),
            canonical({"type": "event", "payload": {"schema": "note", "data": None}}),
            canonical(SET),
        ]
        assert isinstance(events[6], RefusedRow)


def test_lines_with_other_names_and_lines_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "LINE_BYTES_MAX", 200)
    path = tmp_path / "a.jsonl"
    line = json.dumps({"uuid": "1", "room": "p", "event": SET, "at": 5, "user": "u"})
    path.write_text(f"{line}\n" + "x" * 5_000 + f"\n{line}\n")
    names = {"id": "uuid", "partition": "room", "status_updated_at": "at", "client_id": "user"}
    rows = list(jsonl.read(jsonl.splits(0, source(path))[0], FieldMapping(names)))
    assert [each.number for each in rows] == [1, 2, 3]
    event = good(rows[2])
    assert (event.id, event.partitions, event.time, event.client_id) == ("1", ("p",), 5, "u")
    refused = event_of(rows[1])
    assert isinstance(refused, RefusedRow)
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
    found = [each for split in splits for each in tabular.read_parquet(split, FieldMapping())]
    assert [(each.number, each.id) for each in found] == [(n + 1, str(n)) for n in range(95)]
    assert good(found[50]).time == 51


def test_parquet_with_nested_values_and_moments(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table(
        {
            "key": ["1", "2"],
            "room": ["p", "p"],
            "schema": ["note", "note"],
            "data": pa.array(
                [[("n", 1.5), ("m", 2.0)], [("n", float("nan"))]], pa.map_(pa.string(), pa.float64())
            ),
            "meta": [{"ok": True, "more": [None]}, None],
            "at": pa.array([1_700_000_000_000, None], pa.timestamp("ms", "UTC")),
        }
    )
    pq.write_table(table, path)
    names = FieldMapping({"id": "key", "partition": "room", "status_updated_at": "at"})
    (split,) = tabular.parquet_splits(0, source(path, "parquet"))
    rows = list(tabular.read_parquet(split, names))
    event = good(rows[0])
    assert event.time == 1_700_000_000_000
    assert event.event == canonical(
        {
            "type": "event",
            "payload": {"schema": "note", "data": {"n": 1.5, "m": 2}, "meta": {"ok": True, "more": [None]}},
        }
    )
    refused = event_of(rows[1])
    assert isinstance(refused, RefusedRow), "NaN is not silently made something else"
    assert refused.reason == "bad_event"


def test_parquet_as_other_programs_write_it(tmp_path: Path) -> None:
    """UUIDs, texts without a name for it, decimals; a cell that is no value costs its own row only."""
    path, own = tmp_path / "a.parquet", uuid4()
    broken = pa.array([own.bytes, uuid4().bytes, uuid4().bytes], pa.binary(16))
    table = pa.table(
        {
            "id": pa.ExtensionArray.from_storage(pa.uuid(), broken),
            "partition": pa.array([b"p", b"\xff", b"p"]),
            "event": pa.array([json.dumps(SET)] * 3).dictionary_encode(),
            "committed_id": pa.array([Decimal(7), Decimal(8), Decimal(9)], pa.decimal128(20, 2)),
            "status_updated_at": pa.array([1_700_000_000_000, 1, 2**62], pa.timestamp("ms")),
        }
    )
    pq.write_table(table, path)
    (split,) = tabular.parquet_splits(0, source(path, "parquet"))
    rows = list(tabular.read_parquet(split, FieldMapping()))
    event = good(rows[0])
    assert (event.id, event.partitions, event.committed_id) == (str(own), ("p",), 7)
    assert event.time == 1_700_000_000_000
    refused = [(each.number, event_of(each)) for each in rows[1:]]
    assert [(n, each.reason, each.field) for n, each in refused if isinstance(each, RefusedRow)] == [
        (2, "unreadable", "partition"),
        (3, "unreadable", "status_updated_at"),
    ]


def test_csv_keeps_every_character_and_counts_every_row(tmp_path: Path) -> None:
    """U+0000 is a character like others; a row with a cell too few is no row of this header; blank lines are none."""
    path = tmp_path / "a.csv"
    path.write_bytes(
        b"\xef\xbb\xbf\r\nid,partition,schema,data\r\na\0b,p,note,1\r\n\r\nc,p,note\r\n"
        b'd,p\xff,note,1\r\ne,p,note,"\0"\r\nf,p,note,1'
    )
    rows = list(tabular.read_csv(Split(0, str(path), "csv"), FieldMapping()))
    found = [(each.number, event_of(each)) for each in rows]
    assert [(n, each.reason) for n, each in found if isinstance(each, RefusedRow)] == [
        (5, "unreadable"),
        (6, "unreadable"),
        (7, "bad_event"),
    ]
    assert [each.id for _, each in found if isinstance(each, ImportedEvent)] == ["a\0b", "f"]


@pytest.mark.parametrize("rest", ['b,p,note,"1\nc,p,note,1\n', 'b,p,note,"{\\"n\\":1}"\nc,p,note,1\n'])
def test_csv_that_ends_to_be_csv(tmp_path: Path, rest: str) -> None:
    """Where a row begins is not guessed, so that none is lost without a word."""
    path = tmp_path / "a.csv"
    path.write_text("id,partition,schema,data\na,p,note,1\n" + rest)
    with pytest.raises(PipelineError, match=r"a\.csv is not CSV from line 3 on"):
        list(tabular.read_csv(Split(0, str(path), "csv"), FieldMapping()))


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
    names = FieldMapping(
        {"id": "key", "partitions": "rooms", "data": "what", "schema": "kind", "client_id": "who"}
    )
    tabular.require_columns(source(path, "csv"), names)
    rows = list(tabular.read_csv(Split(0, str(path), "csv"), names))
    assert [each.number for each in rows] == [4, 5, 6, 7, 8]
    event = good(rows[0])
    assert (event.partitions, event.client_id) == (("a", "b"), "ann")
    assert json.loads(event.event)["payload"] == {"schema": "note", "data": {"text": 'a, "b"'}}
    refused = [event_of(each) for each in rows[1:]]
    assert [each.reason for each in refused if isinstance(each, RefusedRow)] == [
        "bad_partitions",
        "bad_event",
        "unreadable",
        "bad_event",
    ]


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(PipelineError, match="no column 'c' for id"):
        tabular.require_columns(source(path, "csv"), FieldMapping({"id": "c"}))
    with pytest.raises(PipelineError, match="--map partitions=COLUMN; it has 'a', 'b'"):
        tabular.require_columns(source(path, "csv"), FieldMapping({"id": "a", "event": "b"}))
    path.write_text("id,partition,event,id\n")
    with pytest.raises(PipelineError, match="several columns 'id'"):
        tabular.require_columns(source(path, "csv"), FieldMapping())
    path.write_text("")
    tabular.require_columns(source(path, "csv"), FieldMapping())
    assert list(tabular.read_csv(Split(0, str(path), "csv"), FieldMapping())) == []


# -- which files, and what is wrong with them --------------------------------------------------------------------


def test_files_of_a_directory(tmp_path: Path) -> None:
    for name in (
        "b.JSONL",
        "a.csv",
        "sub/c.jsonl",
        ".git/d.jsonl",
        "_temporary/e.parquet",
        "_f.csv",
        "notes.md",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    said: list[str] = []
    found = find([tmp_path], None, said.append)
    assert [(Path(each.path).name, each.format) for each in found] == [
        ("a.csv", "csv"),
        ("b.JSONL", "jsonl"),
        ("c.jsonl", "jsonl"),
    ]
    assert said == [f"{tmp_path}: skipped because of their names: notes.md"]
    assert [Path(each.path).name for each in find([tmp_path], "csv")] == ["a.csv"]
    with pytest.raises(PipelineError, match=r"files end in \.parquet$"):
        find([tmp_path], "parquet")


def test_a_delta_table_is_what_it_holds_now(tmp_path: Path) -> None:
    """Its files of before, which may hold what was erased since, and its own log are passed over."""
    for mode in ("append", "overwrite"):
        write_deltalake(str(tmp_path), pa.table({"id": [mode]}), mode=mode)
    (found,) = find([tmp_path], None)
    assert pq.read_table(found.path)["id"].to_pylist() == ["overwrite"]


LINES = b"".join(b'{"id": "e%d", "partitions": ["p"], "event": {}}\n' % n for n in range(5_000))
PACKED = gzip.compress(LINES, mtime=0)  # parameters name their tests, which must be the same in every process


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", LINES.decode().encode("utf-16"), "is UTF-16"),
        ("a.jsonl", PACKED, "is gzip, and its name"),
        ("a.csv.gz", b"id,partition,event\n", "is not gzip"),
        (
            "a.jsonl.gz",
            PACKED[:5_000],
            r"a\.jsonl\.gz is damaged after row \d+, and nothing was",
        ),
        ("a.csv.gz", PACKED[:9], "cannot be read as csv: Compressed file ended"),
        ("a.parquet", b"", "cannot be read as parquet"),
        ("a.parquet", b"PAR1 and so on", "cannot be read as parquet"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)

    def read() -> None:
        (found,) = find([tmp_path / name], None)
        if found.format != "jsonl":
            tabular.require_columns(found, FieldMapping())
        split = Split(0, found.path, found.format)
        run_task(ReadTask(split, str(tmp_path), "x", FieldMapping(), ShippedModel.open(), "import"))

    with pytest.raises(PipelineError, match=says):
        read()


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


# -- components --------------------------------------------------------------------------------------------------


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
