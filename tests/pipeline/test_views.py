"""The lake's tables for other engines, without Spark: a DuckDB file, and states as Delta tables."""

from __future__ import annotations

import fcntl
import json
import os
import resource
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake

from tests.docs.blocks import blocks
from tests.lake.lakes import HERE, compact, export_to
from tests.lake.test_old_lakes import unpacked
from tests.pipeline.equality import by_partition
from tests.pipeline.history import make_store
from unisono.cli.main import main
from unisono.lake.errors import LakeUnusable
from unisono.lake.lake import Lake
from unisono.lake.run_tables import RunRecord, record_runs
from unisono.lake.storage import SNAPSHOTS, Storage
from unisono.pipeline.delta_copies import write_delta_copies
from unisono.pipeline.duckdb_file import make_duckdb_file
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.past.job import state_at
from unisono.pipeline.jobs.snapshot.items import items_of
from unisono.pipeline.jobs.snapshot.job import snapshot
from unisono.pipeline.open_log import sqlite_uri
from unisono.store.port import Record

OPEN = ShippedModel.open()
DOCS = Path(__file__).parents[2] / "docs" / "pipeline-engines.md"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, list[Record]]:
    folder = tmp_path_factory.mktemp("it's here")
    records = make_store(folder / "data", 300)
    made = Lake.at(str(folder / "lake"))
    made.make(buckets=4)
    for upto in (200, 300):
        export(HERE, sqlite_uri(folder / "data"), made, to=upto)
        snapshot(HERE, made, OPEN)
    record_runs(made.storage, [RunRecord("one", "export", 1_700_000_000_000, 1.0, 300, True)])
    return made, records


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(path), read_only=True) as database:
        return database.execute(query).fetchall()


def test_a_duckdb_file_in_the_lake_is_refused(lake: tuple[Lake, list[Record]]) -> None:
    """An erasure could not read it, and would find nothing in it."""
    path = Path(lake[0].storage.location, "log", "..", "lake.duckdb")
    with pytest.raises(PipelineError, match="is in the lake: name a place outside of it"):
        make_duckdb_file(lake[0], path)
    assert not path.exists()


def test_a_duckdb_file(lake: tuple[Lake, list[Record]], tmp_path: Path) -> None:
    made, records = lake
    path = tmp_path / "lake.duckdb"
    for _ in range(2):  # the second replaces the first
        file = make_duckdb_file(made, path)
    names = by_partition(records)
    assert (file.head, file.states) == (300, len(names))
    assert rows(path, "SELECT id, epoch_ms(committed_at) FROM events ORDER BY committed_id") == [
        (record.id, record.status_updated_at) for record in records
    ]
    states = dict(rows(path, "SELECT partition, state FROM states"))
    items = rows(path, "SELECT partition, id FROM items")
    assert states.keys() == names.keys()
    for name, state in states.items():
        expected = state_at(made, name, OPEN).state
        assert json.loads(state) == expected
        own = sorted(id for partition, id in items if partition == name)
        assert own == sorted(item[1] for item in items_of(expected))
    for name in list(names)[:3]:
        found = rows(path, f"SELECT committed_id FROM history('{name}')")
        assert [id for (id,) in found] == [record.committed_id for record in names[name]]
    assert rows(path, "SELECT count(*) FROM partition_events") == [(sum(map(len, names.values())),)]
    assert rows(path, "SELECT job, items FROM runs") == [("export", 300)]
    assert rows(path, "SELECT * FROM audit") == []


def test_a_lake_that_was_never_folded_has_no_states_in_duckdb(tmp_path: Path) -> None:
    """Empty tables would say that there is nothing in any partition."""
    made, path = Lake.at(str(tmp_path / "lake")), tmp_path / "lake.duckdb"
    make_store(tmp_path / "data", 60)
    export_to(made, tmp_path / "data", 30)
    assert make_duckdb_file(made, path).states == 0
    assert rows(path, "SELECT table_name FROM duckdb_tables()") == []
    assert rows(path, "SELECT count(*) FROM events") == [(30,)]
    with pytest.raises(PipelineError, match="the lake has no snapshots: `unisono lake snapshot` folds"):
        write_delta_copies(made, Storage.at(str(tmp_path / "copies"), {}))
    assert not (tmp_path / "copies" / "states").exists()
    snapshot(HERE, made, OPEN)
    export_to(made, tmp_path / "data")
    snapshot(HERE, made, OPEN)
    states = make_duckdb_file(made, path).states
    assert states > 0
    assert DeltaTable(made.storage.table(SNAPSHOTS)).optimize.compact()["numFilesRemoved"] > 1
    assert make_duckdb_file(made, path).states == states, "read from the version before"


def test_a_duckdb_file_that_cannot_be_made(lake: tuple[Lake, list[Record]], tmp_path: Path) -> None:
    path, making = tmp_path / "lake.duckdb", tmp_path / ".lake.duckdb.new"
    with pytest.raises(PipelineError, match=r"lake\.duckdb cannot be made: No such file or directory"):
        make_duckdb_file(lake[0], tmp_path / "missing" / "lake.duckdb")
    making.mkdir()
    descriptor = os.open(making, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(PipelineError, match=r"another process makes .*lake\.duckdb"):
        make_duckdb_file(lake[0], path)
    assert making.exists()
    assert not path.exists()
    os.close(descriptor)
    make_duckdb_file(lake[0], path)
    assert not making.exists()


def test_no_duckdb_file_beside_the_wal_of_one_that_is_gone(
    lake: tuple[Lake, list[Record]], tmp_path: Path
) -> None:
    """DuckDB opens none there."""
    made, _ = lake
    path, left = tmp_path / "lake.duckdb", tmp_path / "lake.duckdb.wal"
    left.write_bytes(b"of another file")
    with pytest.raises(PipelineError, match=r"lake\.duckdb\.wal is left of a file that is gone.*remove it"):
        make_duckdb_file(made, path)
    left.unlink()
    make_duckdb_file(made, path)
    assert rows(path, "SELECT count(*) FROM events") == [(300,)]


def test_a_killed_run_leaves_temporary_files_of_duckdb(
    lake: tuple[Lake, list[Record]], tmp_path: Path
) -> None:
    """In a directory that it names after its file, once rows do not fit into memory."""
    path, making = tmp_path / "lake.duckdb", tmp_path / ".lake.duckdb.new"
    (making / "lake.duckdb.tmp").mkdir(parents=True)
    (making / "lake.duckdb.tmp" / "duckdb_temp_storage_DEFAULT-0.tmp").write_bytes(b"rows")
    make_duckdb_file(lake[0], path)
    assert rows(path, "SELECT count(*) FROM events") == [(300,)]
    assert not making.exists()


def test_a_duckdb_file_on_a_full_disk(lake: tuple[Lake, list[Record]], tmp_path: Path) -> None:
    """There is room for its WAL and not for itself: without that WAL it would be empty."""
    path, limits = tmp_path / "lake.duckdb", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        with pytest.raises(PipelineError, match=r"DuckDB cannot do it: .*create checkpoint"):
            make_duckdb_file(lake[0], path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
    make_duckdb_file(lake[0], path)
    assert rows(path, "SELECT count(*) FROM events") == [(300,)]


def test_a_duckdb_file_of_a_lake_below_directories_that_look_like_columns(tmp_path: Path) -> None:
    """DuckDB takes them for values of every row: all events would be of the partition b and the client c."""
    records = make_store(tmp_path / "data", 60)
    made = Lake.at(str(tmp_path / "partition=b" / "client_id=c,bucket=7" / "lake"))
    made.make(buckets=2)
    make_duckdb_file(made, tmp_path / "lake.duckdb")
    assert rows(tmp_path / "lake.duckdb", "SELECT * FROM partition_events") == []
    export_to(made, tmp_path / "data", 30)
    compact(made)
    export_to(made, tmp_path / "data")
    make_duckdb_file(made, tmp_path / "lake.duckdb")
    for table, rows_expected in (
        ("events", [(record.committed_id, record.client_id) for record in records]),
        ("partition_events", [(r.committed_id, r.client_id) for r in records for _ in r.partitions]),
    ):
        found = rows(tmp_path / "lake.duckdb", f"SELECT committed_id, client_id FROM {table} ORDER BY 1")
        assert found == rows_expected
    names = {name for record in records for name in record.partitions}
    found = rows(tmp_path / "lake.duckdb", "SELECT DISTINCT partition FROM partition_events")
    assert {name for (name,) in found} == names
    name, own = next(iter(by_partition(records).items()))
    found = rows(tmp_path / "lake.duckdb", f"SELECT committed_id FROM history('{name}')")
    assert [id for (id,) in found] == [record.committed_id for record in own]


@pytest.mark.parametrize("name", ["items", "EVENTS"])
def test_tables_of_somebody_else_stay_in_a_duckdb_file(
    lake: tuple[Lake, list[Record]], tmp_path: Path, name: str
) -> None:
    path = tmp_path / "mine.duckdb"
    with duckdb.connect(str(path)) as database:
        database.execute(
            f"CREATE {'TABLE' if name == 'items' else 'VIEW'} {name} AS SELECT 1 AS id, 2 AS price"
        )
    with pytest.raises(PipelineError, match=f"{name.lower()} is a table of somebody else in this file"):
        make_duckdb_file(lake[0], path)
    assert rows(path, f"SELECT * FROM {name}") == [(1, 2)]
    make_duckdb_file(lake[0], path, "u_")
    assert rows(path, "SELECT count(*) FROM u_events") == [(300,)]


def test_the_queries_of_the_documentation(lake: tuple[Lake, list[Record]], tmp_path: Path) -> None:
    path = tmp_path / "lake.duckdb"
    make_duckdb_file(lake[0], path)
    (queries,) = [block.text for block in blocks(DOCS) if block.language == "sql"]
    findings, runs, erasures = [rows(path, query) for query in queries.split(";") if query.strip()]
    assert findings == erasures == []
    assert [row[1:] for row in runs] == [("export", 300, 1.0, 0)]


def test_an_old_lake(tmp_path: Path) -> None:
    made, content = unpacked(1, tmp_path / "old")
    make_duckdb_file(made, tmp_path / "old.duckdb", "u_")
    found = rows(tmp_path / "old.duckdb", "SELECT event, author FROM u_events ORDER BY committed_id")
    assert found == [(event["event"], event["author"]) for event in content["events"]]


def test_an_empty_lake(tmp_path: Path) -> None:
    made = Lake.at(str(tmp_path / "lake"))
    made.make(buckets=2)
    assert make_duckdb_file(made, tmp_path / "a.duckdb").states == 0
    for table in ("events", "partition_events", "states", "items", "runs", "audit", "history('a')"):
        assert rows(tmp_path / "a.duckdb", f"SELECT * FROM {table}") == []


def test_states_and_items_as_delta_tables(lake: tuple[Lake, list[Record]], tmp_path: Path) -> None:
    made, records = lake
    target = Storage.at(str(tmp_path / "copies"))
    for _ in range(2):
        done = write_delta_copies(made, target)
    assert done.states == len(by_partition(records))
    states = DeltaTable(target.table("states"))
    assert (states.version(), states.count()) == (2, done.states)
    assert DeltaTable(target.table("items")).count() == done.items
    with pytest.raises(PipelineError, match="is in the lake"):
        write_delta_copies(made, Storage.at(f"{made.storage.location}/copies"))
    write_deltalake(target.table("my_states"), pa.table({"one": [1]}))
    with pytest.raises(PipelineError, match="my_states is a table of somebody else"):
        write_delta_copies(made, target, prefix="my_")
    kept = tmp_path / "copies" / "other_states" / "2025" / "numbers.csv"
    kept.parent.mkdir(parents=True)
    kept.write_text("1,2,3")
    os.utime(kept, (0, 0))
    for _ in range(2):
        with pytest.raises(
            LakeUnusable, match=r"other_states has files and is no table of ours .2025/numbers.csv."
        ):
            write_delta_copies(made, target, prefix="other_")
    assert kept.exists(), "a vacuum of the copy would have removed it"


@pytest.mark.parametrize("engine", ["duckdb", "delta"])
def test_states_that_are_behind_the_lake_are_not_said_to_be_of_its_end(tmp_path: Path, engine: str) -> None:
    make_store(tmp_path / "data", 60)
    made = Lake.at(str(tmp_path / "lake"))
    made.make(buckets=2)
    export(HERE, sqlite_uri(tmp_path / "data"), made, to=40)
    snapshot(HERE, made, OPEN)
    export(HERE, sqlite_uri(tmp_path / "data"), made)
    place = ["lake", "views", "--lake", made.storage.location, f"--{engine}", str(tmp_path / "out")]
    done = CliRunner().invoke(main, place)
    assert (done.exit_code, done.stdout.endswith("up to 40 by model version 0\n")) == (0, True), done.output
    assert done.stderr == (
        "states and items are of events up to 40, the lake has 60: `unisono lake snapshot` folds the rest\n"
    )


def test_the_command(lake: tuple[Lake, list[Record]], tmp_path: Path) -> None:
    made, _ = lake
    place = ["lake", "views", "--lake", made.storage.location]
    told = CliRunner().invoke(main, [*place, "--duckdb", str(tmp_path / "a.duckdb")])
    assert told.output.startswith(f"{tmp_path}/a.duckdb: events up to 300, ")
    told = CliRunner().invoke(main, [*place, "--delta", str(tmp_path / "copies")])
    assert "items, of events up to 300" in told.output
    for wrong in (["--duckdb", "a", "--delta", "b"], ["--duckdb", "a", "--database", "b"]):
        assert CliRunner().invoke(main, [*place, *wrong]).exit_code == 2
