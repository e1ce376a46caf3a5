"""kill -9 of jobs that have no test of their own for it: compaction, recorded audits, copies, streams into a server.

Exports: jobs/export/test_kills.py. Snapshots and publishing: jobs/snapshot/test_kills.py. Imports:
jobs/import_/test_kills.py. Retention: jobs/retain/test_retain.py. Erasures: jobs/erase/test_erase_live.py. The
service with all of them: service/test_service.py. More kills of each: soak/.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.behaviour.server.harness import running
from tests.lake.lakes import HERE, export_to
from tests.pipeline.history import make_store, read_store, require_exact
from tests.pipeline.processes import kill, run, start, wait_until
from unisono.lake.lake import Lake
from unisono.lake.run_tables import AUDIT, RUNS, read_rows
from unisono.lake.storage import BY_PARTITION, LOG, Storage
from unisono.pipeline import delta_copies
from unisono.pipeline.delta_copies import write_delta_copies
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.compact.job import compact
from unisono.pipeline.jobs.snapshot.job import snapshot
from unisono.samples import sample_model
from unisono.store.port import Record

EVENTS = 2_000
ROOT = Path(__file__).parents[2]
Made = tuple[Lake, list[Record]]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    records = make_store(tmp_path / "data", EVENTS)
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=4)
    export_to(lake, tmp_path / "data", *range(200, EVENTS + 1, 200))
    return lake, records


def commits(folder: str) -> int:
    return len(list(Path(folder, "_delta_log").glob("0*.json")))


def files(folder: str) -> int:
    return len(list(Path(folder).rglob("[0-9a-f]*.parquet")))


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("_quick_starts")
def test_compaction(made: Made) -> None:
    """When its first file is there, and when one of the two tables is compacted."""
    lake, records = made
    tables = [lake.storage.table(name) for name in (LOG, BY_PARTITION)]
    written, committed = sum(map(files, tables)), sum(map(commits, tables))
    moments: list[Callable[[], bool]] = [
        lambda: sum(map(files, tables)) > written,
        lambda: sum(map(commits, tables)) > committed,
    ]
    hits = 0
    for moment in moments:
        driver = start("compact", "--lake", lake.storage.location, "--master", "local[2]")
        wait_until(moment, driver)
        hits += kill(driver)
        require_exact(lake, records)
    assert hits, "something was killed in the middle"
    compact(HERE, lake)
    require_exact(lake, records)


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("_quick_starts")
def test_recorded_audits(made: Made, tmp_path: Path) -> None:
    """Killed between its two commits: findings without a run, never a run without its findings."""
    lake, _ = made
    event = lake.table(LOG).files()[0]
    place = ["--lake", lake.storage.location, "--data", str(tmp_path / "data"), "--master", "local[2]"]
    Path(lake.storage.uri(LOG, event.path)).write_bytes(b"damaged")
    driver = start("audit", *place, "--record")
    wait_until(lambda: commits(lake.storage.table(AUDIT)), driver)
    kill(driver)
    done = run("audit", *place, "--record")
    assert done.returncode == 1, done.stderr
    runs = read_rows(lake.storage, RUNS).to_pylist()
    findings = Counter(row["run_id"] for row in read_rows(lake.storage, AUDIT).to_pylist())
    assert 1 <= len(runs) <= 2
    assert len(set(findings.values())) == 1, "each audit found the same"
    assert {row["run_id"] for row in runs} <= findings.keys()


def test_delta_copies(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables are those of one run each, and what a killed run wrote goes away."""
    lake, _ = made
    snapshot(HERE, lake, ShippedModel.open())
    target = Storage.at(str(tmp_path / "copies"))
    moments: list[Callable[[], bool]] = [
        lambda: files(target.table("states")) > 0,
        lambda: commits(target.table("states")) > 1,
        lambda: files(target.table("items")) > 0,
    ]
    hits = 0
    for moment in moments:
        copying = start("views", "--lake", lake.storage.location, "--delta", target.location)
        wait_until(moment, copying)
        hits += kill(copying)
    assert hits, "something was killed in the middle"
    monkeypatch.setattr(delta_copies, "KEEP_HOURS", 0)
    done = write_delta_copies(lake, target)
    for name, count in (("states", done.states), ("items", done.items)):
        table = DeltaTable(target.table(name))
        assert table.count() == count
        assert files(target.table(name)) == len(table.file_uris())


def test_two_copies_at_once(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them is refused: both would leave their rows."""
    lake, _ = made
    snapshot(HERE, lake, ShippedModel.open())
    target = Storage.at(str(tmp_path / "copies"))
    done = write_delta_copies(lake, target)
    both, refused = threading.Barrier(2), []
    write = Storage.write

    def together(self: Storage, *arguments: object) -> None:
        if str(arguments[0]) == "states":
            both.wait(30)
        write(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Storage, "write", together)

    def copy() -> None:
        try:
            write_delta_copies(lake, target)
        except PipelineError as error:
            refused.append(str(error))

    copying = [threading.Thread(target=copy) for _ in range(2)]
    for thread in copying:
        thread.start()
    for thread in copying:
        thread.join()
    assert DeltaTable(target.table("states")).count() == done.states
    assert refused == [
        f"{target.table('states')}: another process replaced the table meanwhile, run it again"
    ]


def test_a_duckdb_file(made: Made, tmp_path: Path) -> None:
    """It has what the last whole run put into it."""
    lake, records = made
    snapshot(HERE, lake, ShippedModel.open())
    path = tmp_path / "lake.duckdb"
    making = tmp_path / ".lake.duckdb.new"
    arguments = ("views", "--lake", lake.storage.location, "--duckdb", str(path))
    whole = [(EVENTS,)]

    def events() -> list[tuple[int]]:
        with duckdb.connect(str(path)) as database:
            return database.sql("SELECT count(*) FROM events").fetchall()

    hits = 0
    for moment in (making / path.name, making / f"{path.name}.wal", Path(f"{path}.wal")):
        if moment.parent == making:
            path.unlink(missing_ok=True)
        killed = start(*arguments)
        wait_until(moment.exists, killed)
        hits += kill(killed)
        assert not path.exists() or events() == whole, "it has its name when it is complete"
        done = run(*arguments)
        assert done.returncode == 0, done.stderr
        assert not making.exists()
    assert hits, "something was killed in the middle"
    assert events() == whole
    with duckdb.connect(str(path), read_only=True) as database:
        states = len({name for record in records for name in record.partitions})
        assert database.sql("SELECT count(*), count(DISTINCT partition) FROM states").fetchall() == [
            (states, states)
        ]


@pytest.mark.soak
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("_quick_starts")
def test_revalidation(made: Made, tmp_path: Path) -> None:
    """The next run leaves what an undisturbed one does: rows that the killed one wrote are not added to."""
    lake, records = made
    model = str(sample_model())
    arguments = ("revalidate", "--lake", lake.storage.location, "--model", model, "--against", model)
    killed = start(*arguments, "--out", str(tmp_path / "killed"))
    wait_until(lambda: list((tmp_path / "killed").rglob("*.parquet")), killed)
    assert kill(killed)
    assert not (tmp_path / "killed" / "index.html").exists()
    for out in ("killed", "whole"):
        done = run(*arguments, "--out", str(tmp_path / out))
        assert done.returncode in (0, 1), done.stderr
    for table in ("events", "partitions"):
        ours, theirs = (tmp_path / out / table for out in ("killed", "whole"))
        assert ours.is_dir() == theirs.is_dir()
        if ours.is_dir():
            assert pq.read_table(ours).to_pylist() == pq.read_table(theirs).to_pylist()
    require_exact(lake, records)


@pytest.mark.req("ORD-03")
@pytest.mark.timeout(240)
def test_the_driver_of_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """Between two of its micro-batches or in one: the next driver goes on, and nothing is committed twice."""
    rows = spark.range(400, numPartitions=4).selectExpr(
        "concat('streamed-', id) AS id",
        "array(concat('room-', id % 7)) AS partitions",
        "'note.added' AS schema",
        "to_json(named_struct('n', id)) AS data",
    )
    rows.write.parquet(str(tmp_path / "rows"))
    checkpoint = tmp_path / "at"
    with running(tmp_path / "served", "--model", "open") as server:
        command = [
            sys.executable, "-m", "tests.pipeline.spark.stream_steps",
            str(tmp_path / "rows"), str(checkpoint), server.url, str(server.secret_file),
        ]  # fmt: skip

        def driver() -> subprocess.Popen[str]:
            return subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip

        first = driver()
        assert wait_until(lambda: len(list(checkpoint.glob("commits/[0-9]*"))) >= 2, first)
        assert kill(first)
        assert 0 < len(read_store(server.data)) < 400
        second = driver()
        _, said = second.communicate(timeout=120)
        assert second.returncode == 0, said
        found = Counter(record.id for record in read_store(server.data))
    assert found == Counter(f"streamed-{number}" for number in range(400))


def test_a_copy_beside_an_optimize(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is refused: delta-rs would leave the rows of both."""
    lake, _ = made
    snapshot(HERE, lake, ShippedModel.open())
    target = Storage.at(str(tmp_path / "copies"))
    done = write_delta_copies(lake, target)
    write = Storage.write

    def optimized(self: Storage, *arguments: object) -> None:
        write(self, *arguments)  # type: ignore[arg-type]
        DeltaTable(target.table("states")).optimize.z_order(["partition"])

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "write", optimized)
        with pytest.raises(PipelineError, match="another process replaced the table meanwhile"):
            write_delta_copies(lake, target)
    assert DeltaTable(target.table("states")).count() == done.states
    assert write_delta_copies(lake, target) == done
