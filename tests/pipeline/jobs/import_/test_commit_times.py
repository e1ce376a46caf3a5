"""Rules that read the time of the commit: an import judges with the times that it stores."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.pipeline.history import read_store
from tests.store.postgres.server import database, postgres  # noqa: F401 (fixtures)
from tests.store.records import make_record
from unisono.model.authorship import authorship_of
from unisono.model.load import load_model
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.import_ import prepare
from unisono.pipeline.jobs.import_.commit_times import CommitTimes, read_times, settle_times
from unisono.pipeline.jobs.import_.job import ImportPlan, run
from unisono.pipeline.jobs.import_.repeats import KEY_SCHEMA, LAST, find_repeats, key_batch
from unisono.pipeline.jobs.import_.result import ImportReport
from unisono.pipeline.jobs.import_.sources import find
from unisono.pipeline.jobs.revalidate.model_track import Track
from unisono.pipeline.open_log import open_reader, sqlite_uri
from unisono.store.postgres.log import PostgresLog

END_MS = 1_700_000_000_000

RULES = f"""
from unisono.model.rules import Event, Rules, refuse

rules = Rules()

@rules.check("note")
def in_time(state, event: Event):
    if not state.get("next", 0) <= event.committed_at < {END_MS}:
        yield refuse("", f"not at {{event.committed_at}}")

@rules.reduce("note")
def note(state, event: Event) -> None:
    state["next"] = event.committed_at + 100
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ShippedModel:
    """It takes notes of a partition 100 ms after one another, and none from END_MS on."""
    place = tmp_path_factory.mktemp("model")
    (place / "schemas").mkdir()
    (place / "schemas" / "note.json").write_text("{}")
    (place / "model.toml").write_text('name = "n"\nmodel_version = 1\nrules = "rules.py"\n')
    (place / "rules.py").write_text(RULES)
    return ShippedModel.of(load_model(place))


def row(number: int, time: int | None, *partitions: str, id: str = "") -> dict[str, Any]:
    return {
        "id": id or f"e{number}",
        "committed_id": number,
        "partitions": partitions,
        "status_updated_at": time,
        "schema": "note",
        "data": 1,
    }


def write(path: Path, rows: Sequence[Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in rows))


def importing(spark: SparkSession, place: Path, name: str, model: ShippedModel, **more: Any) -> ImportReport:
    store, sources = more.pop("store", sqlite_uri(place / "data")), tuple(find((place / name,), None))
    plan = ImportPlan(store, sources, place / "staging", str(place / "rejects"), model=model, **more)
    return run(plan, lambda: spark, lambda _text: None)


def require_taken(data: Path, model: ShippedModel) -> None:
    """Judged again with the times that are stored, every event is taken, in each of its partitions."""
    records = read_store(data)
    track = Track(model.load(), {})
    for name in {name for record in records for name in record.partitions}:
        track.begin()
        for record in records:
            if name in record.partitions:
                by = authorship_of(record.client_id, record.author, record.status_updated_at)
                event = msgspec.json.decode(record.event)
                assert track.take(record.committed_id, event, by).rejected is None


def test_rows_are_judged_with_the_times_that_are_stored(
    spark: SparkSession, tmp_path: Path, model: ShippedModel
) -> None:
    chance = random.Random(5)
    times = [1_000 + 40 * n + chance.randrange(-100, 100) for n in range(120)]
    rows = [
        row(number, None if chance.random() < 0.2 else time, *chance.sample("pqr", chance.choice([1, 1, 2])))
        for number, time in enumerate(times, 1)
    ]
    rows.insert(30, rows[10] | {"committed_id": 30, "status_updated_at": 90_000})  # a duplicate
    rows += [row(200, 2**47, "p"), row(201, None, "q")]  # in the future: at the time of the import
    write(tmp_path / "old" / "a.jsonl", rows[::2])
    write(tmp_path / "old" / "b.jsonl", rows[1::2])
    report = importing(spark, tmp_path, "old", model, split_bytes=3_000)
    now, next_at, taken = min(each["status_updated_at"] or END_MS for each in rows), dict[str, int](), []
    for each in sorted(rows, key=lambda each: int(each["committed_id"])):
        if each["status_updated_at"] == 90_000:
            continue
        now = max(now, each["status_updated_at"] or 0)
        if now < END_MS and all(next_at.get(name, 0) <= now for name in each["partitions"]):
            next_at |= dict.fromkeys(each["partitions"], now + 100)
            taken.append((each["id"], now))
    assert [(record.id, record.status_updated_at) for record in read_store(tmp_path / "data")] == taken
    assert report.prepared.totals.duplicate == 1
    assert 20 < report.prepared.reasons["refused"] < 100
    assert report.loaded is not None
    given = {each["id"]: each["status_updated_at"] for each in rows if each["status_updated_at"] != 90_000}
    assert report.loaded.moved_times == sum(given[id] not in (None, at) for id, at in taken) > 0
    require_taken(tmp_path / "data", model)
    # Rows before the last event of the log are judged with its time.
    last = taken[-1][1]
    write(tmp_path / "more.jsonl", [row(1, 5, "new", id="x"), row(2, last - 1, "new", id="y")])
    assert importing(spark, tmp_path, "more.jsonl", model, dry_run=True).prepared.reasons == {"refused": 1}
    importing(spark, tmp_path, "more.jsonl", model)
    (added,) = read_store(tmp_path / "data")[len(taken) :]
    assert (added.id, added.status_updated_at) == ("x", last)
    require_taken(tmp_path / "data", model)


def test_a_row_without_a_time_is_judged_with_the_time_of_the_import(
    spark: SparkSession, tmp_path: Path, model: ShippedModel
) -> None:
    write(tmp_path / "a.jsonl", [row(1, None, "p")])
    assert importing(spark, tmp_path, "a.jsonl", model).prepared.reasons == {"refused": 1}
    assert read_store(tmp_path / "data") == []


def test_a_node_commits_after_the_rows_were_judged(
    spark: SparkSession,
    database: str,  # noqa: F811
    tmp_path: Path,
    model: ShippedModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a partition that the import does not have: its rows have other times then, and are judged again."""
    write(tmp_path / "a.jsonl", [row(1, 1_000, "p"), row(2, 2_000, "p")])
    judge, reports = prepare.prepare, []

    def interrupted(*arguments: Any) -> Any:
        reports.append(judge(*arguments))
        if len(reports) == 1:
            node = PostgresLog.open(database, "node")
            node.begin([])
            node.commit([msgspec.structs.replace(make_record(1, ["q"]), status_updated_at=50_000)])
            node.close()
        return reports[-1]

    monkeypatch.setattr(prepare, "prepare", interrupted)
    importing(spark, tmp_path, "a.jsonl", model, store=database)
    assert [report.reasons for report in reports] == [{}, {"refused": 1}]
    with closing(open_reader(database)) as reader:
        stored = [(record.id, record.status_updated_at) for record in reader.scan(0, 9, limit=9)]
    assert stored == [("id-1", 50_000), ("e1", 50_000)]


@pytest.mark.parametrize("order", ["committed_id", "time", None])
def test_times_never_go_back_in_any_order(spark: SparkSession, tmp_path: Path, order: str | None) -> None:
    chance = random.Random(7)
    keys, places, wanted = [], [], [dict[int, int]() for _ in range(5)]
    for split in range(5):
        rows = list(range(1, 41))
        committed_ids = [chance.choice([None, chance.randrange(1, 500)]) for _ in rows]
        times = [chance.choice([None, chance.randrange(1, 1_000)]) for _ in rows]
        keys.append(str(tmp_path / f"{split}.parquet"))
        ids = [f"{split}-{number}" for number in rows]
        with pq.ParquetWriter(keys[-1], KEY_SCHEMA) as writer:
            writer.write_batch(key_batch(split, rows, ids, [bytes(32)] * 40, committed_ids, times))
        for number, committed_id, time in zip(rows, committed_ids, times, strict=True):
            key = {"committed_id": committed_id, "time": time, None: 0}[order]
            places.append((LAST if key is None else key, split, number, time))
    latest = 0
    for _, split, number, time in sorted(places, key=lambda place: place[:3]):
        latest = max(latest, time or 0)
        settled = min(max(latest, 100), 900)
        if settled != time:
            wanted[split][number] = settled
    repeats, settled_times = tmp_path / "repeats", CommitTimes(str(tmp_path / "times"), 100, 900)
    find_repeats(spark, keys, order, repeats, 2)
    settle_times(spark, keys, order, str(repeats), settled_times, 2)
    assert [read_times(settled_times.folder, 2, split) for split in range(5)] == wanted
