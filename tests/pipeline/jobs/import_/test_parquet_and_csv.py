"""What becomes of Parquet and CSV files, row by row."""

from __future__ import annotations

import csv
import json
from decimal import Decimal
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tests.pipeline.jobs.import_.source_files import SET, event_of, good, source
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.import_ import tabular
from unisono.pipeline.jobs.import_.outcomes import RefusedRow
from unisono.pipeline.jobs.import_.read_split import ReadTask, run_task
from unisono.pipeline.jobs.import_.rows import ImportedEvent
from unisono.pipeline.jobs.import_.sources import FieldMapping, Split, find
from unisono.protocol.canonical import canonical

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


def test_parquet_of_large_rows_is_read_few_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    sizes = [10] * 2_000 + [1_000_000] * 40
    rows = [{"id": str(n), "partition": "p", "event": f'{{"x":"{n:0{s}}"}}'} for n, s in enumerate(sizes)]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2_000, write_batch_size=1)
    (split,) = tabular.parquet_splits(0, source(path, "parquet"))
    before = peak = pa.total_allocated_bytes()
    for number, each in enumerate(tabular.read_parquet(split, FieldMapping()), 1):
        peak = max(peak, pa.total_allocated_bytes())
        assert (each.number, each.event) == (number, rows[number - 1]["event"].encode())
    assert number == len(rows)
    assert peak - before < 30_000_000


@pytest.mark.parametrize("same", [False, True], ids=["different", "all the same, stored once"])
def test_large_rows_of_parquet_where_the_mean_is_small(tmp_path: Path, same: bool) -> None:
    """Sizes of a row group do not show that large rows stand together, or that one value stands for many."""
    path = tmp_path / "a.parquet"
    sizes = [10] * 20_000 + [1_000_000] * 160
    large = "x" * 999_990
    events = [f'{{"x":"{0 if same else n:010}{large if size > 10 else ""}"}}' for n, size in enumerate(sizes)]
    ids = [str(n) for n in range(len(sizes))]
    pq.write_table(pa.table({"id": ids, "event": events}), path, write_batch_size=1)
    before = peak = pa.total_allocated_bytes()
    count = 0
    with pq.ParquetFile(path) as file:
        for batch in tabular._batches(file, [0], ["id", "event"]):
            peak = max(peak, pa.total_allocated_bytes())
            assert batch.nbytes <= tabular.BATCH_BYTES
            assert batch.column("id").to_pylist() == ids[count : count + batch.num_rows]
            count += batch.num_rows
    assert count == len(ids)
    assert peak - before < 100_000_000


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


@pytest.mark.parametrize("end", ["b,p,note", "b,p,note,{"])
def test_csv_that_was_cut_short(tmp_path: Path, end: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,partition,schema,data\na,p,note,1\n" + end)
    split = Split(0, str(path), "csv")
    task = ReadTask(split, 0, str(tmp_path), FieldMapping(), ShippedModel.open(), "import")
    with pytest.raises(PipelineError, match="damaged after row 2, and nothing was"):
        run_task(task)


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


def test_a_column_that_only_a_directory_has(tmp_path: Path) -> None:
    """As Spark and Delta write tables that are partitioned: the client would be lost without notice."""
    table = pa.table({"id": ["a"], "partition": ["p"], "event": ["{}"], "client_id": ["ann"], "type": ["x"]})
    write_deltalake(str(tmp_path), table, partition_by=["client_id", "type"])
    (found,) = find([tmp_path], None)
    with pytest.raises(PipelineError, match="client_id in the name of its directory only"):
        tabular.require_columns(found, FieldMapping())
    tabular.require_columns(found, FieldMapping({"client_id": "partition"}))
