"""What each format makes of its files, row by row; no Spark needed to read them."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.jobs.import_.source_files import SET, event_of, good, row, source
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.import_ import json_lines as jsonl
from unisono.pipeline.jobs.import_ import tabular
from unisono.pipeline.jobs.import_.outcomes import RefusedRow
from unisono.pipeline.jobs.import_.read_split import ReadTask, count, run_task
from unisono.pipeline.jobs.import_.rows import ImportedEvent
from unisono.pipeline.jobs.import_.sources import FieldMapping, Split, find
from unisono.protocol.canonical import canonical


@pytest.mark.req("AUTH-10")
@pytest.mark.parametrize(
    ("fields", "stored"),
    [
        ({}, ""),
        ({"user_id": "ann"}, '{"user_id":"ann"}'),
        ({"user_id": "ann", "claims": {"role": "x"}}, '{"claims":{"role":"x"},"user_id":"ann"}'),
        ({"claims": '{"role":"x"}'}, '{"claims":{"role":"x"}}'),
        ({"author": '{"claims":{"a":1},"user_id":"ann"}'}, '{"claims":{"a":1},"user_id":"ann"}'),
        ({"claims": {}}, ""),
        ({"user_id": 7}, None),
        ({"user_id": "x" * 257}, None),
        ({"claims": "role"}, None),
        ({"claims": [1]}, None),
        ({"claims": {"a": 2**53 + 1}}, None),
        ({"claims": {"a": "x" * 5_000}}, None),
        ({"author": '{"other":1}'}, None),
    ],
)
def test_who_submitted_an_event_comes_with_it(fields: dict[str, Any], stored: str | None) -> None:
    event = event_of(row(**fields))
    if stored is None:
        assert isinstance(event, RefusedRow)
        assert event.reason == "bad_author"
    else:
        assert isinstance(event, ImportedEvent)
        assert event.author == stored


# -- rows ------------------------------------------------------------------------------------------------------


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


def test_a_column_of_several_fields(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"id": "1", "user_id": "ann", "what": "note", "event": None}) + "\n")
    names = {"client_id": "user_id", "partition": "user_id", "schema": "what", "data": "what"}
    (one,) = jsonl.read(jsonl.splits(0, source(path))[0], FieldMapping(names))
    event = good(one)
    assert (event.id, event.client_id, event.partitions) == ("1", "ann", ("ann",))
    assert event.author == '{"user_id":"ann"}'
    assert event.event == canonical({"type": "event", "payload": {"schema": "note", "data": "note"}})
    with pytest.raises(PipelineError, match="names a column that JSON lines cannot have"):
        next(jsonl.read(jsonl.splits(0, source(path))[0], FieldMapping({"id": 'the "id"'})))


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


def test_delta_tables_below_a_directory_too(tmp_path: Path) -> None:
    """Its files may be named by values of a column; names of files with spaces are encoded in its log."""
    for mode in ("append", "overwrite"):
        rows = pa.table({"id": [mode], "kind": ["a b"]})
        write_deltalake(str(tmp_path / "what is old" / "events"), rows, mode=mode, partition_by=["kind"])
    (tmp_path / "what is old" / "more.csv").write_text("id\n")
    found = find([tmp_path], None)
    assert [each.format for each in found] == ["parquet", "csv"]
    assert pq.read_table(found[0].path)["id"].to_pylist() == ["overwrite"]


def test_a_part_of_a_delta_table(tmp_path: Path) -> None:
    """It may have what was deleted or erased since."""
    table = tmp_path / "events"
    write_deltalake(str(table), pa.table({"id": ["1"], "kind": ["a"]}), partition_by=["kind"])
    (file,) = table.glob("kind=a/*.parquet")
    for part in (file.parent, file, f"{table}/kind=a/../kind=a"):
        with pytest.raises(
            PipelineError, match=f"is a part of the Delta table {table}, .*: import {table} instead"
        ):
            find([part], None)
    assert [Path(source.path) for source in find([table], None)] == [file]


def test_a_delta_table_whose_files_have_deleted_rows(tmp_path: Path) -> None:
    """Made by hand: delta-rs writes no deletion vectors."""
    write_deltalake(str(tmp_path), pa.table({"id": ["a"]}))
    commit = tmp_path / "_delta_log" / f"{0:020}.json"
    protocol = {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["deletionVectors"],
            "writerFeatures": ["deletionVectors"],
        }
    }
    lines = [line for line in commit.read_text().splitlines() if '"protocol"' not in line]
    commit.write_text("\n".join([json.dumps(protocol), *lines]))
    with pytest.raises(
        PipelineError, match="uses deletionVectors of Delta, so its files have rows that were"
    ):
        find([tmp_path], None)


def test_a_delta_table_whose_columns_were_renamed(tmp_path: Path) -> None:
    """Its files have the former names; version 2 of the protocol tells of it by a setting, and names no features."""
    write_deltalake(str(tmp_path), pa.table({"id": ["a"]}))
    commit = tmp_path / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            place = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "id"}
            schema["fields"][0] |= {"name": "uuid", "metadata": place}
            action["metaData"]["schemaString"] = json.dumps(schema)
            action["metaData"]["configuration"] = {"delta.columnMapping.mode": "name"}
    commit.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(PipelineError, match="uses columnMapping of Delta"):
        find([tmp_path], None)


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
        (
            "a.jsonl",
            LINES[:100],
            "damaged after row 2, and nothing was imported: line 3, the last one, has no",
        ),
        ("a.jsonl.gz", gzip.compress(LINES[:100], mtime=0), "damaged after row 2"),
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
        run_task(ReadTask(split, 0, str(tmp_path), FieldMapping(), ShippedModel.open(), "import"))

    with pytest.raises(PipelineError, match=says):
        read()


@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet", "insieme"])
def test_what_an_executor_does_not_see_is_not_called_damaged(tmp_path: Path, format: str) -> None:
    """Files and the staging directory are on the machine of the command, and the executor is on another."""
    split = Split(0, str(tmp_path / "rows"), format, end=9)
    task = ReadTask(split, 0, str(tmp_path), FieldMapping(), ShippedModel.open(), "import")
    with pytest.raises(PipelineError, match=r"does not see .*rows: files to import must be on storage"):
        run_task(task)
    if format == "jsonl":
        with pytest.raises(PipelineError, match=r"does not see .*rows: files to import must"):
            count(split)
    task = ReadTask(split, 0, str(tmp_path / "away"), FieldMapping(), ShippedModel.open(), "import")
    with pytest.raises(PipelineError, match=r"does not see .*away: --staging must be a directory that all"):
        run_task(task)
