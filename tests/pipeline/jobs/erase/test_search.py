"""The search for erased content in Parquet files of any shape."""

from __future__ import annotations

import os
import random
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.lake.lakes import HERE, export_to
from tests.pipeline.canaries import CULPRIT, EVERY, append, canary, holders, plant
from tests.pipeline.history import START_MS, make_store
from tests.pipeline.jobs.erase.erasing import run
from tests.pipeline.test_open_log import prune
from unisono.lake.errors import LakeUnusable
from unisono.lake.lake import Lake
from unisono.lake.storage import LOG
from unisono.pipeline.jobs.erase import search as searching
from unisono.pipeline.jobs.erase import select
from unisono.pipeline.jobs.erase.all_files import directory_files, lake_files
from unisono.pipeline.jobs.erase.fragments import PIECE_BYTES, Pieces, Sample, pieces_of, token
from unisono.pipeline.jobs.erase.rewrite import TombstoneTimes
from unisono.pipeline.jobs.erase.search import Unseen, search_files
from unisono.pipeline.open_log import open_reader, sqlite_uri
from unisono.pipeline.spark.executors import run_on_executors
from unisono.protocol.canonical import canonical, content_hash
from unisono.store.port import Record
from unisono.store.sqlite.log import SqliteLog

TEXT = "what was said".center(PIECE_BYTES, ".")
SALT = bytes(16)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([None, TEXT], pa.string()),
        ([TEXT.encode()], pa.large_binary()),
        ([TEXT.encode()], pa.binary(PIECE_BYTES)),
        ([TEXT], pa.string_view()),
        ([TEXT], pa.json_()),
        ([TEXT, TEXT], pa.dictionary(pa.int32(), pa.string())),
        ([None, {"a": [{"b": TEXT}]}], pa.struct({"a": pa.list_(pa.struct({"b": pa.string()}))})),
        ([None, [(TEXT, "")]], pa.map_(pa.string(), pa.string())),
        ([[("", ["", TEXT])]], pa.map_(pa.string(), pa.list_(pa.string()))),
    ],
)
def test_text_is_found_in_every_type(tmp_path: Path, values: list[Any], kind: pa.DataType) -> None:
    if isinstance(kind, pa.BaseExtensionType):
        column = pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    else:
        column = pa.array(values, kind)
    (tmp_path / "other").mkdir()
    pq.write_table(
        pa.table({"n": pa.array(range(len(values))), "x": column}), tmp_path / "other" / "a.parquet"
    )
    pieces = Pieces([token(TEXT.encode(), SALT)], SALT)
    (trace,) = search_files(TombstoneTimes.of({}), pieces, lake_files(Lake.at(str(tmp_path)).storage))
    assert trace.pieces == pieces.tokens


def test_what_executors_do_not_see_is_searched_by_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a directory of reports, and executors on other machines: not searched is not clean. A file of the embedded
    log is not opened: the driver's process could lose SQLite's locks on it."""
    reports, away = tmp_path / "reports", tmp_path / "away"
    reports.mkdir()
    for name in ("copy.json", "gone.json", "log.db-wal"):
        (reports / name).write_text(f'{{"said": "{TEXT}"}}')
    places = directory_files(reports)
    (reports / "gone.json").unlink()

    def elsewhere(*job: Any) -> list[Any]:
        reports.rename(away)
        try:
            return run_on_executors(*job)
        finally:
            away.rename(reports)

    monkeypatch.setattr(searching, "run_on_executors", elsewhere)
    pieces = Pieces([token(TEXT.encode(), SALT)], SALT)
    (trace,) = searching.search(HERE, places, TombstoneTimes.of({}), pieces).traces
    assert (Path(trace.place.path).name, trace.pieces) == ("copy.json", pieces.tokens)


def test_a_directory_that_cannot_be_listed_is_no_searched_one(tmp_path: Path) -> None:
    """One with too long a path, since root may list all others."""
    place = os.open(tmp_path, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=place)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.close(place)
    with pytest.raises(LakeUnusable, match="cannot be searched"):
        lake_files(Lake.at(str(tmp_path)).storage)
    assert directory_files(tmp_path / "gone") == []


def test_events_of_one_file_of_many_are_all_searched_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of pieces is bounded, and what other files do not need is for those that have erased events."""
    data, lake = tmp_path / "data", Lake.at(str(tmp_path / "lake"))
    with closing(SqliteLog.open(data)) as log:
        records = append(log, 200)
    export_to(lake, data, events_per_file=10)
    erased = records[100:110]
    wanted = {token(piece, SALT) for record in erased for piece in pieces_of(record.event)}
    monkeypatch.setattr(select, "PIECES_MAX", 10 * len(wanted))  # for each of 20 files half
    ids = select.Selector("id", tuple(record.id for record in erased))
    found = select.select(HERE, sqlite_uri(data), lake.view(), ids, 0, 200, SALT)
    assert [event.id for event in found.events] == [record.id for record in erased]
    assert found.pieces == wanted
    monkeypatch.setattr(select, "PIECES_MAX", 10)
    assert 0 < len(select.select(HERE, sqlite_uri(data), lake.view(), ids, 0, 200, SALT).pieces) <= 10


def test_few_pieces_of_an_event_are_not_those_that_all_events_have() -> None:
    said = [random.Random(n).randbytes(60).hex() for n in range(100)]
    texts = [
        canonical({"type": "event", "payload": {"schema": "note.added", "data": {"text": text}}})
        for text in said
    ]
    some = Sample(100, SALT)
    for text in texts:
        some.add(text)
    found = some.tokens()
    assert len(found) == 100
    common = set(pieces_of(texts[0])) & set(pieces_of(texts[1]))
    assert common
    assert not found & {token(piece, SALT) for piece in common}


def test_an_event_in_much_text_is_found_wherever_else_it_is(tmp_path: Path) -> None:
    """18 MB of one client in one file, and a copy of the end of a late event."""
    data, lake, names = tmp_path / "data", Lake.at(str(tmp_path / "lake")), ("p",)
    said = [random.Random(number).randbytes(8_000).hex() for number in range(1_101)]
    with closing(SqliteLog.open(data)) as log:
        log.begin([])
        records = []
        for number in range(1, 1_101):
            body = canonical({"type": "event", "payload": {"schema": "long", "data": said[number]}})
            hashed = content_hash(body, canonical(list(names)))
            records.append(Record(number, f"e{number}", CULPRIT, names, body, hashed, START_MS + number))
        log.commit(records)
    export_to(lake, data)
    (file,) = lake.table(LOG).files()
    assert file.rows == 1_100
    left = tmp_path / "lake" / "left behind"
    left.write_text(said[1_090][-6_000:])
    done = run(HERE, data, lake)
    assert [trace.place.path for trace in done.proof.traces] == ["left behind"]
    assert not done.certificate.complete


def test_each_event_in_a_file_that_came_back_is_searched_for(tmp_path: Path) -> None:
    """A file from before an erasure that was proved: nothing is known any more of what its events said."""
    data, lake = tmp_path / "data", Lake.at(str(tmp_path / "lake"))
    made = [plant(EVERY * number) for number in range(1, 1_101)]
    records = [msgspec.structs.replace(record, committed_id=number) for number, record in enumerate(made, 1)]
    with closing(SqliteLog.open(data)) as log:
        log.begin([])
        log.commit(records)
    export_to(lake, data)
    (file,) = lake.table(LOG).files()
    place = Path(lake.storage.uri(LOG, file.path))
    content = place.read_bytes()
    assert run(HERE, data, lake).proof.holds
    place.write_bytes(content)
    left = tmp_path / "lake" / "left behind"
    left.write_text(canary(EVERY * 1_051))
    again = run(HERE, data, lake)
    assert not place.exists()
    assert again.intact == 0
    assert [trace.place.path for trace in again.proof.traces] == ["left behind"]


def test_few_texts_are_in_memory_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file that another program packed into one row group."""
    monkeypatch.setattr(searching, "BATCH_BYTES", 1 << 18, raising=False)
    ids, texts = list(range(1, 161)), [random.Random(n).randbytes(10_000).hex() for n in range(160)]
    path = tmp_path / LOG / "part.parquet"
    path.parent.mkdir()
    table = pa.table({"committed_id": pa.array(ids, pa.int64()), "event": texts})
    pq.write_table(table, path, use_dictionary=False, compression="none")
    times, size = TombstoneTimes.of(dict.fromkeys(ids, 5)), path.stat().st_size
    del table, texts
    tracemalloc.start()
    try:
        places = lake_files(Lake.at(str(tmp_path)).storage)
        (trace,) = search_files(times, Pieces((), SALT), places, Unseen(frozenset(ids), 10))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (trace.events, len(trace.pieces)) == (160, 1_600)
    assert most < size


def test_events_beside_pruned_ones_are_found_in_the_log(tmp_path: Path) -> None:
    """A retention that runs beside an erasure ends in the middle of what a task reads."""
    records = make_store(tmp_path / "data", 100)
    prune(tmp_path / "data", 40)
    with closing(open_reader(sqlite_uri(tmp_path / "data"))) as reader:
        found = select.texts_of(reader, (*range(1, 60), 77))
    assert found == {record.committed_id: record.event for record in (*records[40:59], records[76])}


def test_erasing_in_a_lake_of_many_exports(spark: SparkSession, tmp_path: Path) -> None:
    """Tables of many versions have checkpoints, whose columns are maps."""
    data, lake = tmp_path / "data", Lake.at(str(tmp_path / "lake"))
    with closing(SqliteLog.open(data)) as log:
        append(log, 200)
    export_to(lake, data, *range(5, 201, 5))
    assert list((tmp_path / "lake").rglob("*.checkpoint.parquet"))
    assert run(spark, data, lake).proof.holds
    assert list(holders(data, tmp_path / "lake")) == []
