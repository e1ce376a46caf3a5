"""The lake's tables through the data source: rows, columns and views; most of it without Spark."""

from __future__ import annotations

import hashlib
import json
import pickle
import unicodedata
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tests.lake.lakes import HERE
from tests.pipeline.equality import by_partition
from tests.pipeline.history import make_store, row_of
from unisono.lake.errors import LakeUnusable
from unisono.lake.lake import Lake
from unisono.lake.run_tables import RunRecord, record_runs
from unisono.lake.snapshots import StateRow
from unisono.lake.storage import SNAPSHOTS
from unisono.model.pack import pack
from unisono.pipeline import create_views, snapshots
from unisono.pipeline.duckdb_file import make_duckdb_file
from unisono.pipeline.errors import NoSuchPartition, PipelineError
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.compact.job import compact
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.past.job import state_at
from unisono.pipeline.jobs.snapshot.items import BATCH_BYTES, item_rows, items_of
from unisono.pipeline.jobs.snapshot.job import latest, snapshot
from unisono.pipeline.open_log import sqlite_uri
from unisono.pipeline.spark import lake_source
from unisono.pipeline.spark.lake_source import SCHEMAS, LakeTableRead
from unisono.pipeline.spark.source import UnisonoSource
from unisono.protocol.canonical import canonical, content_hash
from unisono.store.port import Record
from unisono.store.sqlite.log import SqliteLog

OPEN = ShippedModel.open()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, list[Record]]:
    folder = tmp_path_factory.mktemp("tables")
    records = make_store(folder / "data", 600)
    made = Lake.at(str(folder / "lake"))
    made.make(buckets=4)
    for upto in (400, 600):
        export(HERE, sqlite_uri(folder / "data"), made, to=upto)
        snapshot(HERE, made, OPEN)
    record_runs(made.storage, [RunRecord("one", "export", 1_700_000_000_000, 1.0, 600, True)])
    return made, records


def rows_of(lake: Lake, **options: str) -> list[dict[str, Any]]:
    reader = LakeTableRead.of({"lake": lake.storage.location, **options}).reader()
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def test_events_with_their_time(lake: tuple[Lake, list[Record]]) -> None:
    made, records = lake
    rows = rows_of(made)
    assert len(rows) == 600
    for row, record in zip(sorted(rows, key=lambda row: row["committed_id"]), records, strict=True):
        committed_at = row.pop("committed_at")
        assert committed_at == datetime.fromtimestamp(record.status_updated_at / 1_000, UTC)
        assert row == row_of(record)


@pytest.mark.parametrize("table", ["events", "partition_events"])
def test_tasks_are_planned_by_size(
    lake: tuple[Lake, list[Record]], table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small files are read by one task, a large one of `log` by several."""
    made, _ = lake
    options = {"lake": made.storage.location, "table": table}
    assert len(LakeTableRead.of(options).reader().partitions()) == 1
    whole = sorted(rows_of(made, table=table), key=repr)
    view = made.view()
    files = view.log_files if table == "events" else view.partition_files
    monkeypatch.setattr(lake_source, "TASK_BYTES", min(file.bytes for file in files) // 3)
    parts = len(LakeTableRead.of(options).reader().partitions())
    assert parts >= 3 * len(files) if table == "events" else parts == len(files)
    assert sorted(rows_of(made, table=table), key=repr) == whole


def test_only_the_columns_ids_and_partitions_that_are_asked_for(lake: tuple[Lake, list[Record]]) -> None:
    made, records = lake
    asked = {"lake": made.storage.location, "columns": "type, committed_at"}
    assert UnisonoSource(asked).schema() == "type STRING, committed_at TIMESTAMP"
    some = rows_of(made, columns="committed_id", **{"from": "100", "to": "102"})
    assert some == [{"committed_id": 101}, {"committed_id": 102}]
    name, history = next(iter(by_partition(records).items()))
    found = rows_of(made, table="partition_events", partitions=name, columns="committed_id,partition")
    assert sorted(row["committed_id"] for row in found) == [record.committed_id for record in history]
    assert {row["partition"] for row in found} == {name}
    twice = rows_of(
        made, table="partition_events", partitions=json.dumps([name, name]), columns="committed_id"
    )
    assert len(twice) == len(history)


def test_states_and_their_items(lake: tuple[Lake, list[Record]]) -> None:
    made, records = lake
    states = {row["partition"]: row for row in rows_of(made, table="states")}
    assert states.keys() == by_partition(records).keys()
    items = rows_of(made, table="items")
    for name, row in states.items():
        expected = state_at(made, name, OPEN).state
        assert json.loads(row["state"]) == expected
        own = [item for item in items if item["partition"] == name]
        doc: Any = expected["tree"].get("doc", {})  # type: ignore[union-attr]
        assert {item["id"]: json.loads(item["value"]) for item in own} == doc.get("items", {})
        assert {item["target"] for item in own} <= {"doc"}
    assert items
    (name,) = {row["partition"] for row in rows_of(made, table="items", partitions=items[0]["partition"])}
    assert name == items[0]["partition"]


def test_partitions_are_found_as_a_person_spells_them(lake: tuple[Lake, list[Record]]) -> None:
    """Files, keyboards and other tools write the same name in several ways; the log has one of them."""
    made, records = lake
    name = next(name for name in by_partition(records) if not name.isascii() and "ü" in name)
    spelt = unicodedata.normalize("NFD", name)
    assert spelt != name
    for text in (spelt, json.dumps([spelt, name])):
        found = rows_of(made, table="partition_events", partitions=text, columns="committed_id")
        assert len(found) == len(by_partition(records)[name])
        assert len(rows_of(made, table="states", partitions=text)) == 1
    with pytest.raises(NoSuchPartition, match="must not be empty"):
        rows_of(made, table="states", partitions="")


@pytest.mark.req("TREE-12")
def test_items_of_trees_deeper_than_parsers_go(tmp_path: Path) -> None:
    with closing(SqliteLog.open(tmp_path / "data")) as log:
        log.begin([])
        log.commit([pushed_below(number) for number in range(1, 801)])
    made = Lake.at(str(tmp_path / "lake"))
    made.make(buckets=2)
    export(HERE, sqlite_uri(tmp_path / "data"), made)
    snapshot(HERE, made, OPEN)
    rows = rows_of(made, table="items")
    assert [(row["id"], row["parent"], row["depth"]) for row in rows[-2:]] == [
        ("n799", "n798", 798),
        ("n800", "n799", 799),
    ]
    assert make_duckdb_file(made, tmp_path / "lake.duckdb").items == 800


def pushed_below(number: int) -> Record:
    options = {"parent": f"n{number - 1}"} if number > 1 else {}
    payload: Any = {"target": "doc", "value": {"id": f"n{number}"}, "options": options}
    body = canonical({"type": "treePush", "payload": payload})
    own = content_hash(body, canonical(["deep"]))
    return Record(number, f"e{number}", "client", ("deep",), body, own, 1_700_000_000_000, "")


def test_large_items_are_read_in_bounded_batches() -> None:
    items: Any = {f"n{number}": {"text": "x" * 1_000_000} for number in range(20)}
    tree: Any = [{"id": id, "children": []} for id in items]
    packed = pack({"tree": {"doc": {"tree": tree, "items": items}}, "data": {}})
    state = StateRow("a", 20, packed, 20, 0, "", 0, hashlib.sha256(packed).digest())
    batches = list(item_rows([state]))
    assert max(batch.nbytes for batch in batches) < BATCH_BYTES + 100_000
    assert [id for batch in batches for id in batch.column("id").to_pylist()] == list(items)


def test_a_dataframe_is_the_lake_at_the_time_of_load(tmp_path: Path) -> None:
    """However many queries are planned on it later, after whatever exports, snapshots and compactions."""
    store, made = sqlite_uri(tmp_path / "data"), Lake.at(str(tmp_path / "lake"))
    make_store(tmp_path / "data", 900)
    made.make(buckets=2)

    def go_on(upto: int) -> None:
        export(HERE, store, made, to=upto)
        snapshot(HERE, made, OPEN)
        record_runs(made.storage, [RunRecord(f"to {upto}", "export", 1_700_000_000_000, 1.0, upto, True)])

    go_on(300)
    loaded = {
        table: UnisonoSource({"lake": made.storage.location, "table": table})
        for table in ("events", "partition_events", "states", "items", "runs")
    }
    before = {table: planned_rows(source) for table, source in loaded.items()}
    assert all(before.values())
    for upto in (400, 500, 600, 700, 900):
        go_on(upto)
    compact(HERE, made)
    assert {table: planned_rows(source) for table, source in loaded.items()} == before
    assert len(rows_of(made)) == 900


@pytest.mark.parametrize("table", ["states", "items"])
def test_a_dataframe_that_outlives_the_versions_of_its_lake_is_not_empty(tmp_path: Path, table: str) -> None:
    """Commits leave a table's log some days after a checkpoint."""
    make_store(tmp_path / "data", 300)
    made = Lake.at(str(tmp_path / "lake"))
    made.make(buckets=2)
    export(HERE, sqlite_uri(tmp_path / "data"), made, to=200)
    snapshot(HERE, made, OPEN)
    source = UnisonoSource({"lake": made.storage.location, "table": table})
    assert planned_rows(source)
    export(HERE, sqlite_uri(tmp_path / "data"), made)
    snapshot(HERE, made, OPEN)
    snapshots = made.table(SNAPSHOTS)
    snapshots.delta.create_checkpoint()
    commits = Path(made.storage.table(SNAPSHOTS)) / "_delta_log"
    for version in range(snapshots.version):
        (commits / f"{version:020d}.json").unlink()
    with pytest.raises(PipelineError, match=r"no longer has its version 1, .* load it again"):
        planned_rows(source)
    assert planned_rows(UnisonoSource({"lake": made.storage.location, "table": table}))


@pytest.mark.parametrize("table", ["states", "items"])
def test_snapshots_of_some_partitions_are_not_shown_as_those_of_all(
    tmp_path: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = make_store(tmp_path / "data", 300)
    made = Lake.at(str(tmp_path / "lake"))
    made.make(buckets=2)
    export(HERE, sqlite_uri(tmp_path / "data"), made)
    one, other, *rest = by_partition(records)
    snapshot(HERE, made, OPEN, partitions=[one])

    def read(*names: str) -> set[str]:
        options = {"partitions": json.dumps(names)} if names else {}
        return {row["partition"] for row in rows_of(made, table=table, **options)}

    def require_refused() -> None:
        for refused in (read, lambda: make_duckdb_file(made, tmp_path / "lake.duckdb")):
            with pytest.raises(PipelineError, match=r"version 0 are of some partitions only: `unisono lake"):
                refused()
        with pytest.raises(PipelineError, match="are of some partitions only"):
            snapshots(HERE, made, model=OPEN)

    require_refused()
    assert read(one) <= {one}
    with pytest.raises(PipelineError, match=rf"partition '{other}' has no snapshot of model version 0"):
        read(one, other)

    folded = []

    def killed(*_: int) -> None:
        """After the first wave."""
        folded.append(len({row.partition for row in latest(made, 0)}))
        raise KeyboardInterrupt

    monkeypatch.setattr("unisono.pipeline.jobs.snapshot.job.WAVE_ROWS_PER_CORE", 1)
    monkeypatch.setattr("unisono.pipeline.task_planning.FEW_EVENTS", 10)
    with pytest.raises(KeyboardInterrupt):
        snapshot(HERE, made, OPEN, progress=killed)
    assert 1 < folded[0] < len(rest) + 2
    require_refused()
    snapshot(HERE, made, OPEN)
    assert read() <= {one, other, *rest}
    assert len(rows_of(made, table="states")) == len(rest) + 2


def planned_rows(source: UnisonoSource) -> list[str]:
    """The rows of a query that is planned now on a source as Spark keeps it."""
    source = pickle.loads(pickle.dumps(source))
    reader = source.reader(StructType())
    return sorted(
        repr(row)
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()  # type: ignore[union-attr]
    )


@pytest.mark.parametrize("table", SCHEMAS)
def test_where_there_is_no_lake_no_table_is_empty(tmp_path: Path, table: str) -> None:
    with pytest.raises(LakeUnusable, match="there is no lake at"):
        UnisonoSource({"lake": str(tmp_path), "table": table})


def test_items_have_parents_and_positions() -> None:
    leaf = {"id": "c", "children": []}
    tree = [{"id": "a", "children": [{"id": "b", "children": []}, leaf]}, {"id": "d", "children": []}]
    state: Any = {
        "tree": {"x": {"y": {"tree": tree, "items": {name: {"n": name} for name in "abcd"}}, "z": 1}}
    }
    assert [item[:5] for item in items_of(state)] == [
        ("x.y", "a", None, 0, 0),
        ("x.y", "b", "a", 0, 1),
        ("x.y", "c", "a", 1, 1),
        ("x.y", "d", None, 1, 0),
    ]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"to": "601"}, "ends at event 600, events up to 601 are requested: `unisono lake export` adds"),
        ({"from": "601"}, "ends at event 600, events after 601 are requested"),
        ({"from": "9", "to": "5"}, r"\(9, 5\] is not a range: 0 <= from <= to must hold"),
        ({"table": "states", "to": "601"}, "ends at event 600, events up to 601 are requested"),
        ({"table": "items", "model_version": "7"}, "no snapshots of model version 7; there are those of 0"),
    ],
)
def test_what_the_lake_does_not_have_is_no_empty_answer(
    lake: tuple[Lake, list[Record]], options: dict[str, str], error: str
) -> None:
    with pytest.raises((PipelineError, LakeUnusable), match=error):
        LakeTableRead.of({"lake": lake[0].storage.location, **options}).reader()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"lake": " "}, "the location is empty"),
        ({"table": "log"}, "there is no table 'log'"),
        ({"columns": "event, nothing"}, "'nothing' is none of committed_id"),
        ({"colums": "event"}, "option 'colums' is unknown"),
        (
            {"partitions": "a"},
            "option partitions is not for the table events, but for partition_events, states",
        ),
        ({"table": "states", "from": "5"}, "option from is not for the table states"),
        ({"table": "runs", "to": "5"}, "option to is not for the table runs"),
        ({"model_version": "0"}, "option model_version is not for the table events, but for states, items"),
    ],
)
def test_options_that_cannot_be_meant(
    lake: tuple[Lake, list[Record]], options: dict[str, str], error: str
) -> None:
    with pytest.raises((PipelineError, LakeUnusable), match=error):
        LakeTableRead.of({"lake": lake[0].storage.location, **options})


def test_views_in_the_catalog(spark: SparkSession, lake: tuple[Lake, list[Record]], tmp_path: Path) -> None:
    made, records = lake
    names = create_views(spark, made.storage.location, prefix="u_")
    assert names == ["u_events", "u_partition_events", "u_states", "u_items", "u_runs", "u_audit"]
    found = spark.sql("SELECT count(*) n, max(committed_at) t FROM u_events WHERE type = 'set'").collect()[0]
    own = [record for record in records if row_of(record)["type"] == "set"]
    assert (found.n, found.t.timestamp() * 1_000) == (len(own), own[-1].status_updated_at)
    both = spark.sql(
        "SELECT count(*) n FROM u_partition_events e JOIN u_states s ON e.partition = s.partition"
    ).collect()[0]
    assert both.n == sum(len(record.partitions) for record in records)
    assert [row.job for row in spark.sql("SELECT job FROM u_runs").collect()] == ["export"]
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW u_two USING unisono OPTIONS (lake '{made.storage.location}', columns 'id')"
    )
    assert len(spark.sql("SELECT * FROM u_two LIMIT 5").collect()) == 5
    empty = Lake.at(str(tmp_path / "empty"))
    empty.make()
    create_views(spark, empty, prefix="e_")
    assert spark.sql("SELECT * FROM e_states").collect() == []
