"""Large events: their texts stay beside the rows, and what is imported is what was in the file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.pipeline.history import read_store
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.jobs.import_ import large_texts
from unisono.pipeline.jobs.import_.job import ImportPlan, run
from unisono.pipeline.jobs.import_.large_texts import INLINE_BYTES_MAX, LargeTexts, LargeTextWriter
from unisono.pipeline.jobs.import_.outcomes import CONTENT_CHARS_MAX
from unisono.pipeline.jobs.import_.result import ImportReport, JudgingSummary
from unisono.pipeline.jobs.import_.sources import find
from unisono.pipeline.open_log import sqlite_uri


def text(length: int, mark: str) -> bytes:
    return b'{"%s":"%s"}' % (mark.encode(), os.urandom(length // 2).hex().encode())


def test_texts_come_back_whatever_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_texts, "FILES_OPEN_MAX", 2)
    written: list[tuple[str, bytes]] = []
    for name in ("000000", "000001", "000002"):
        writer = LargeTextWriter(str(tmp_path), name)
        for length in (10, INLINE_BYTES_MAX, 100_000, 5_000):
            one = text(length, name)
            written.append((writer.put(one).decode(), one))
        writer.close()
    with LargeTexts(tmp_path) as texts:
        for row, one in [*written, *reversed(written)]:
            assert texts.text(row) == one
            assert len(row) <= INLINE_BYTES_MAX
            assert (row == one.decode()) == (len(one) <= INLINE_BYTES_MAX)
            assert len(texts._files) <= 2


def test_small_texts_need_no_file(tmp_path: Path) -> None:
    writer = LargeTextWriter(str(tmp_path), "000000")
    assert writer.put(b"{}") == b"{}"
    writer.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["gone", "cut short", "overwritten"])
def test_a_damaged_file_of_texts_is_named(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "staging" / "rows"
    folder.mkdir(parents=True)
    writer = LargeTextWriter(str(folder), "000007")
    row = writer.put(text(50_000, "a")).decode()
    writer.close()
    file = folder / "000007.texts"
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1] if damage == "cut short" else bytes(file.stat().st_size))
    says = f"000007.texts cannot be used .*remove {folder.parent} and run this again"
    with LargeTexts(folder) as texts, pytest.raises(PipelineError, match=says):
        texts.text(row)


def push(number: int, item: str, size: int, *partitions: str) -> dict[str, Any]:
    value = {"id": item, "text": "é" * (size // 2)}
    event = {"type": "treePush", "payload": {"target": "t", "value": value}}
    return {"id": f"e{number}", "partitions": partitions, "event": event, "committed_id": number}


@pytest.fixture
def history(tmp_path: Path) -> list[dict[str, Any]]:
    """Small and large events in one and in two partitions, a duplicate, a conflict, and two that are refused."""
    return [
        push(1, "a", 10, "p"),
        push(2, "b", 300_000, "p"),
        push(3, "c", 200_000, "p", "q"),
        push(4, "d", 10, "q"),
        push(5, "c", 200_002, "p"),  # p has c
        push(6, "d", 200_004, "q", "r"),  # q has d
        push(7, "d", 8_000, "r"),  # r has none, because q refused it
        push(3, "c", 200_000, "p", "q") | {"committed_id": 8},
        push(2, "b", 300_002, "p") | {"committed_id": 9},
    ]


def imported(spark: SparkSession, place: Path, rows: list[dict[str, Any]], **more: Any) -> ImportReport:
    file = place / "old.jsonl"
    if not file.exists():
        file.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    sources, store = tuple(find((file,), None)), sqlite_uri(place / "data")
    plan = ImportPlan(store, sources, place / "staging", str(place / "rejects"), **more)
    return run(plan, lambda: spark, lambda _text: None)


@pytest.mark.parametrize("split_bytes", [16 << 20, 250_000])
def test_java_never_has_a_large_text(
    spark: SparkSession, tmp_path: Path, history: list[dict[str, Any]], split_bytes: int
) -> None:
    dry = imported(spark, tmp_path, history, dry_run=True, split_bytes=split_bytes)
    (staged,) = (tmp_path / "staging").glob("*/staged")
    for name in ("staged", "rows"):
        for file in staged.with_name(name).glob("*.parquet"):
            with pq.ParquetFile(file) as table:
                for column in table.read().columns:
                    sizes = [len(value) for value in column.to_pylist() if isinstance(value, str | bytes)]
                    assert max(sizes, default=0) <= INLINE_BYTES_MAX
    assert dry.prepared.judged == JudgingSummary(rounds=2, again=2)
    report = imported(spark, tmp_path, history, split_bytes=split_bytes)
    assert report.prepared.totals.duplicate == 1
    assert report.prepared.reasons == {"refused": 2, "conflict": 1}
    wanted = {row["id"]: row["event"] for row in reversed(history)}
    records = read_store(tmp_path / "data")
    assert [record.id for record in records] == ["e1", "e2", "e3", "e4", "e7"]
    assert all(msgspec.json.decode(record.event) == wanted[record.id] for record in records)
    rejected = DeltaTable(str(tmp_path / "rejects")).to_pyarrow_table().to_pylist()
    contents = {row["line"]: row["content"] for row in rejected}
    for line in (5, 6, 9):
        (value,) = {row["event"]["payload"]["value"]["text"] for row in history[line - 1 : line]}
        assert len(contents[line]) == CONTENT_CHARS_MAX
        assert contents[line].endswith(value[:60_000])


def test_nothing_that_can_be_an_event(spark: SparkSession, tmp_path: Path) -> None:
    report = imported(spark, tmp_path, [{"id": "a"}, {"id": "b", "partitions": ["p"]}])
    assert report.prepared.reasons == {"bad_partitions": 1, "bad_event": 1}
    assert read_store(tmp_path / "data") == []
