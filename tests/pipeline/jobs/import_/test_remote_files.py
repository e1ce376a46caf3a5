"""Files to import in an object store: found, read and judged like those of a directory."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from tests.lake.s3 import object_store
from tests.pipeline.history import read_store
from tests.pipeline.legacy import Legacy
from unisono.lake.storage import Storage
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.jobs.import_ import json_lines, tabular
from unisono.pipeline.jobs.import_.job import ImportPlan, run
from unisono.pipeline.jobs.import_.rows import SourceRow
from unisono.pipeline.jobs.import_.sources import (
    CSV,
    JSONL,
    PARQUET,
    FieldMapping,
    SourceFile,
    Split,
    find,
    open_parquet,
    unchanged,
)
from unisono.pipeline.open_log import sqlite_uri

MAPPED = FieldMapping()


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    with object_store() as options:
        yield options


def put(options: dict[str, str], folder: str, path: str, content: bytes) -> None:
    Storage.at("s3://lake", options).write(folder, path, pa.py_buffer(content))


def rows(source: SourceFile) -> list[SourceRow]:
    if source.format == JSONL:
        splits = json_lines.splits(0, source, 500)
        return [row for split in splits for row in json_lines.read(split, MAPPED)]
    if source.format == PARQUET:
        splits = tabular.parquet_splits(0, source, 2)
        return [row for split in splits for row in tabular.read_parquet(split, MAPPED)]
    split = Split(0, source.path, source.format, options=source.options)
    return list(tabular.read_csv(split, MAPPED))


def test_the_same_rows_as_from_a_directory(s3: dict[str, str], tmp_path: Path) -> None:
    lines = list(Legacy(60).lines())
    text = b"id,partition,type,payload\n" + b'e1,a,set,"{""target"": ""a"", ""value"": ""\xc3\xa9""}"\n'
    table = pa.table({"id": list("abcde"), "partition": ["p"] * 5, "event": ['{"type":"set"}'] * 5})
    pq.write_table(table, tmp_path / "d.parquet", row_group_size=2)
    files = {
        "a.jsonl": b"\n".join(lines),
        "b c.jsonl.gz": gzip.compress(b"\n".join(lines[:20])),
        "c.csv": text,
        "d.parquet": (tmp_path / "d.parquet").read_bytes(),
        "notes.txt": b"?",
        "_done/e.jsonl": b"{}",
    }
    for name, content in files.items():
        put(s3, "old", name, content)
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    said: list[str] = []
    there = find(["s3://lake/old/"], None, said.append, s3)
    here = find([tmp_path], None)
    assert said == ["s3://lake/old/: skipped because of their names: notes.txt"]
    assert [Path(source.path).name for source in there] == [Path(source.path).name for source in here]
    for one, other in zip(there, here, strict=True):
        assert one.bytes == other.bytes
        if one.format in (CSV, PARQUET):
            tabular.require_columns(one, MAPPED)
        assert rows(one) == rows(other), one.path
    (single,) = find(["s3://lake/old/a.jsonl"], None, storage_options=s3)
    assert single == there[0]
    assert unchanged(single)
    put(s3, "old", "a.jsonl", b"{}")
    assert not unchanged(single)
    assert single.identity().options == {}


def test_a_delta_table_is_what_it_holds_now(s3: dict[str, str]) -> None:
    """Named itself, or somewhere below what is named."""
    table = "s3://lake/tables/of old/events"
    for mode in ("append", "overwrite"):
        rows_now = pa.table({"id": [mode], "kind": ["a b"]})
        write_deltalake(table, rows_now, mode=mode, partition_by=["kind"], storage_options=s3)
    put(s3, "tables", "more.csv", b"id\n")
    put(s3, "tables/of old/events too", "more.csv", b"id\n")
    put(s3, "tables/old_delta_log", "more.csv", b"id\n")
    (named,) = find([table], None, storage_options=s3)
    below = find(["s3://lake/tables"], None, storage_options=s3)
    others = [f"s3://lake/tables/{name}more.csv" for name in ("", "of old/events too/", "old_delta_log/")]
    assert {source.path for source in below} == {named.path, *others}
    assert open_parquet(named.path, named.options).read(["id"])["id"].to_pylist() == ["overwrite"]


@pytest.mark.parametrize("within", ["kind=a", "kind=a/part.parquet", "kind=a/", "_delta_log"])
def test_a_part_of_a_delta_table(s3: dict[str, str], within: str) -> None:
    """It may have what was deleted or erased since."""
    table = "s3://lake/parted/events"
    rows_now = pa.table({"id": ["1"], "kind": ["a"]})
    write_deltalake(table, rows_now, mode="overwrite", partition_by=["kind"], storage_options=s3)
    put(s3, "parted/events/kind=a", "part.parquet", b"replaced")
    with pytest.raises(
        PipelineError, match=f"is a part of the Delta table {table}, .*: import {table} instead"
    ):
        find([f"{table}/{within}"], None, storage_options=s3)


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("s3://lake/nothing", "neither a file nor does it hold any"),
        ("s3://lake/x/old.sqlite", "SQLite cannot read from an object store"),
        ("s3://lake/x/unnamed", "what is s3://lake/x/unnamed"),
        ("s3://lake/x/wrong.jsonl", "is gzip, and its name does not end in .gz"),
        ("https://example.org/a.jsonl", "URLs begin with s3://, gs://, az:// or abfss://"),
        ("s3://", "names no bucket"),
    ],
)
def test_what_cannot_be_imported(s3: dict[str, str], url: str, error: str) -> None:
    for name in ("old.sqlite", "unnamed"):
        put(s3, "x", name, b"x")
    put(s3, "x", "wrong.jsonl", gzip.compress(b"{}"))
    with pytest.raises(PipelineError, match=error):
        find([url], None, storage_options=s3)


def test_a_store_that_refuses(s3: dict[str, str]) -> None:
    with pytest.raises(PipelineError, match=r"s3://lake/a cannot be read: .*InvalidAccessKeyId"):
        find(["s3://lake/a"], None, storage_options={**s3, "aws_access_key_id": "nobody"})


@pytest.mark.soak
def test_an_import_from_a_url(spark: SparkSession, s3: dict[str, str], tmp_path: Path) -> None:
    legacy = Legacy(400, faults=10)
    lines = list(legacy.lines())
    put(s3, "whole", "1.jsonl", b"\n".join(lines[:300]))
    put(s3, "whole", "2.jsonl.gz", gzip.compress(b"\n".join(lines[300:])))
    sources = tuple(find(["s3://lake/whole"], None, storage_options=s3))
    store = sqlite_uri(tmp_path / "data")
    plan = ImportPlan(store, sources, tmp_path / "staging", str(tmp_path / "rejects"), split_bytes=4_000)
    report = run(plan, lambda: spark, lambda _: None)
    assert report.prepared.totals.accepted == legacy.planted.accepted
    assert report.prepared.reasons == dict(legacy.planted.reasons)
    assert len(read_store(tmp_path / "data")) == legacy.planted.accepted
    kept: list[Any] = [path for path in tmp_path.rglob("*.json") if b"something" in path.read_bytes()]
    assert kept == [], "no key is written down"
