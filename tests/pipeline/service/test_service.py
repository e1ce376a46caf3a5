"""The pipeline as a service: its cycle, what it remembers, when it ends; and the real one beside a server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.commands import unisono
from tests.lake.lakes import HERE
from tests.pipeline.beside import run_beside
from tests.pipeline.history import make_store
from tests.pipeline.processes import wait_until
from unisono.ipc.files import read_pipeline_status, write_pipeline_status
from unisono.lake.lake import Lake
from unisono.lake.run_tables import RUNS
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.jobs.retain.job import RetentionPolicy
from unisono.pipeline.open_log import sqlite_uri
from unisono.pipeline.service import run as services
from unisono.pipeline.service.lease import Lease
from unisono.pipeline.service.run import FAILED_IN_A_ROW_MAX, Service, ServiceStage, StageResult
from unisono.pipeline.service.stages import ServiceOptions, stages
from unisono.store.sqlite.log import SqliteLog


class Bench:
    """A service on a real log and lake, with stages that only note that they were done."""

    def __init__(self, folder: Path) -> None:
        with closing(SqliteLog.open(folder / "data")):
            pass
        self.store = sqlite_uri(folder / "data")
        self.lake = Lake.at(str(folder / "lake"))
        self.lake.make(buckets=2)
        self.file = folder / "data" / "pipeline.json"
        self.lease = Lease(self.lake.storage)
        self.every_s = 0.01
        self.done: list[str] = []
        self.said: list[str] = []

    def stage(
        self, name: str, every_s: float | None = None, then: Callable[[], None] | None = None
    ) -> ServiceStage:
        def work() -> StageResult:
            self.done.append(name)
            if then is not None:
                then()
            return StageResult(1, f"{name} done")

        return ServiceStage(name, work, every_s)

    def service(
        self, *stages: ServiceStage, alive: Callable[[], bool] = lambda: True, heartbeat_s: float = 60.0
    ) -> Service:
        self.lease.release()
        self.lease = Lease(self.lake.storage)
        self.lease.acquire()
        return Service(
            self.store,
            self.lake,
            stages,
            every_s=self.every_s,
            status_file=self.file,
            notify=self.said.append,
            lease=self.lease,
            alive=alive,
            heartbeat_s=heartbeat_s,
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def fail() -> None:
    raise PipelineError("no luck\nand more")


def test_a_cycle_does_every_stage_in_order(bench: Bench) -> None:
    service = bench.service(bench.stage("export"), bench.stage("audit", 3_600), bench.stage("retain"))
    assert service.run(threading.Event(), cycles=2)
    assert bench.done == ["export", "audit", "retain", "export", "retain"]
    note = read_pipeline_status(bench.file)
    assert note is not None
    assert (note.cycles, note.running, note.stages["export"].runs, note.stages["export"].items) == (
        2,
        False,
        2,
        2,
    )


def test_a_cycle_with_nothing_new_needs_no_spark(tmp_path: Path) -> None:
    """All stages of a cycle, with a session on which nothing can be run once the lake has everything."""
    make_store(tmp_path / "data", 300)
    bench = Bench(tmp_path)
    options = ServiceOptions(RetentionPolicy(events=100, newest=100), compact_every_s=None)
    first = bench.service(*stages(HERE, bench.store, bench.lake, options))
    assert first.run(threading.Event(), cycles=1)
    assert (first.status.lake_head, first.status.log_pruned_to) == (300, 200)
    no_spark: Any = object()
    idle = bench.service(*stages(no_spark, bench.store, bench.lake, options))
    assert idle.run(threading.Event(), cycles=2), bench.said
    assert all(stage.items == 0 for stage in idle.status.stages.values())


def test_what_is_done_now_and_then_is_remembered(bench: Bench) -> None:
    bench.service(bench.stage("audit", 3_600)).run(threading.Event(), cycles=1)
    service = bench.service(bench.stage("audit", 3_600))
    service.run(threading.Event(), cycles=1)
    assert bench.done == ["audit"]
    note = read_pipeline_status(bench.file)
    assert note is not None
    note.stages["audit"].last_done_ms -= 3_600_001
    write_pipeline_status(bench.file, note)
    bench.service(bench.stage("audit", 3_600)).run(threading.Event(), cycles=1)
    assert bench.done == ["audit", "audit"]


def test_a_stage_that_fails_does_not_keep_the_others(bench: Bench) -> None:
    service = bench.service(bench.stage("export", then=fail), bench.stage("publish"))
    assert not service.run(threading.Event(), cycles=2), "something is wrong at the end"
    assert bench.done == ["export", "publish", "export", "publish"]
    export = service.status.stages["export"]
    assert (export.failures, export.failed_in_a_row, export.error) == (2, 2, "no luck and more")
    assert "export failed: no luck and more" in bench.said


def test_runs_are_kept_in_the_lake(bench: Bench) -> None:
    idle = ServiceStage("idle", lambda: StageResult(0, "nothing to do"))
    service = bench.service(bench.stage("export"), idle, bench.stage("retain", then=fail))
    service.run(threading.Event(), cycles=2)
    table = DeltaTable(bench.lake.storage.table(RUNS))
    rows = table.to_pyarrow_table().to_pylist()
    assert sorted((row["job"], row["ok"], row["items"]) for row in rows) == [
        ("export", True, 1),
        ("export", True, 1),
        ("retain", False, 0),
        ("retain", False, 0),
    ]
    assert {row["error"] for row in rows if row["job"] == "retain"} == {"no luck and more"}
    assert len({row["run_id"] for row in rows}) == 4
    assert table.version() == 1, "one commit per cycle"


def test_a_stage_that_keeps_failing_is_tried_ever_more_seldom(bench: Bench) -> None:
    bench.every_s = 3_600.0
    failing = bench.service(bench.stage("export", then=fail), bench.stage("report", 86_400, then=fail))
    export, report = failing._stages
    assert [failing._retry_after_s(export, failures) for failures in (1, 2, 3, 99)] == [0, 600, 600, 600]
    assert [failing._retry_after_s(report, failures) for failures in (1, 2, 3, 99)] == [
        0,
        3_600,
        10_800,
        86_400,
    ]
    bench.every_s = 0.01
    service = bench.service(bench.stage("audit", 3_600, then=fail), bench.stage("publish"))
    service.run(threading.Event(), cycles=2)
    service.status.stages["audit"].failed_in_a_row = 20  # the next try is an hour away
    service.run(threading.Event(), cycles=4)
    assert (bench.done.count("audit"), bench.done.count("publish")) == (2, 4)
    service.status.stages["audit"].last_began_ms += 7_200_000  # as if the clock had been set back since
    assert service._is_due(service._stages[0])


def test_it_ends_when_nothing_works_for_long(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "RETRY_S_MAX", 0.0)
    stages = (
        bench.stage("export", then=fail),
        bench.stage("publish", then=fail),
        bench.stage("audit", 3_600),
    )
    assert not bench.service(*stages).run(threading.Event())
    assert bench.done.count("export") == bench.done.count("publish") == FAILED_IN_A_ROW_MAX
    assert bench.said[-1] == f"every stage has failed {FAILED_IN_A_ROW_MAX} times in a row"


def test_what_an_audit_finds_is_said_until_one_finds_nothing(bench: Bench) -> None:
    """It was done, so it is not done again in the next cycle; and a new start does not forget it."""

    def audit() -> StageResult:
        bench.done.append("audit")
        return StageResult(10, "3 findings", wrong="3 findings (see the page)")

    service = bench.service(ServiceStage("audit", audit, 3_600), bench.stage("publish"))
    assert not service.run(threading.Event(), cycles=3)
    assert bench.done == ["audit", "publish", "publish", "publish"]
    assert bench.said.count("audit failed: 3 findings (see the page)") == 1
    again = bench.service(bench.stage("audit", 3_600), bench.stage("publish"))
    assert not again.run(threading.Event(), cycles=1)
    assert again.status.stages["audit"].error == "3 findings (see the page)"
    without = bench.service(bench.stage("publish"))
    assert without.run(threading.Event(), cycles=1)
    assert without.status.stages["audit"].error == "", "nobody would ever clear it"


def test_trouble_with_the_status_or_the_log_keeps_no_stage(bench: Bench) -> None:
    """Told once, and the work goes on."""
    data = bench.file.parent

    def move() -> None:
        data.rename(data.with_name("moved"))
        data.write_text("in the way")

    service = bench.service(bench.stage("export", then=move), bench.stage("publish"))
    assert service.run(threading.Event(), cycles=1)
    note = [line.partition(":")[0] for line in bench.said]
    assert note.count("cannot write the status") == 1
    assert note.count("log or lake unavailable") == 1
    assert bench.done == ["export", "publish"]


def test_the_status_stays_fresh_during_a_long_stage(bench: Bench) -> None:
    def wait() -> None:
        first = read_pipeline_status(bench.file)
        assert first is not None
        assert first.at_work == "audit"
        assert wait_until(
            lambda: (now := read_pipeline_status(bench.file)) and now.updated_ms > first.updated_ms
        )

    assert bench.service(bench.stage("audit", then=wait), heartbeat_s=0.01).run(threading.Event(), cycles=1)


def test_it_stops_after_the_stage_at_work(bench: Bench) -> None:
    stop = threading.Event()
    service = bench.service(bench.stage("export", then=stop.set), bench.stage("publish"))
    assert service.run(stop)
    assert bench.done == ["export"]


def test_it_ends_when_the_lease_is_lost_or_spark_is_gone(bench: Bench) -> None:
    service = bench.service(bench.stage("export"), alive=lambda: len(bench.done) < 3)
    assert not service.run(threading.Event())
    assert bench.done == ["export"] * 3
    assert "Spark has ended: start the service again" in bench.said

    def lose() -> None:
        bench.lease._lose("was lost")

    assert not bench.service(bench.stage("publish", then=lose)).run(threading.Event())
    assert bench.done[3:] == ["publish"]
    assert bench.said[-1] == "the lake's lease was lost"


def test_a_status_file_that_cannot_be_read_is_as_good_as_none(bench: Bench) -> None:
    bench.file.write_text("{")
    assert read_pipeline_status(bench.file) is None
    assert bench.service(bench.stage("export")).run(threading.Event(), cycles=1)
    assert read_pipeline_status(bench.file) is not None


@pytest.mark.timeout(240)
def test_all_stages_and_a_second_service(spark: SparkSession, tmp_path: Path) -> None:
    """In the Spark of the tests; with one of its own: test_cluster, and below."""
    make_store(tmp_path / "data", 2_500)
    place = ["--data", str(tmp_path / "data"), "--lake", str(tmp_path / "lake"), "--master", "local[2]"]
    out = tmp_path / "out"
    keeping = ["--keep-events", "500", "--keep-newest", "100"]
    done = unisono("lake", "run", *place, "--cycles", "1", *keeping, "--out", str(out))
    assert done.exit_code == 0, done.output
    assert "the log holds 2001 to 2500, the lake 1 to 2500" in done.stdout
    note = read_pipeline_status(tmp_path / "data" / "pipeline.json")
    assert note is not None
    names = ["export", "snapshot", "publish", "retain", "compact", "audit", "report"]
    assert list(note.stages) == names
    assert {name for name in names if note.stages[name].failures} == set()
    assert (out / "audit" / "index.html").is_file()
    assert (out / "report" / "index.html").is_file()
    held = Lease(Lake.at(str(tmp_path / "lake")).storage)
    held.acquire()
    refused = unisono("lake", "run", *place, "--cycles", "1", "--no-wait")
    held.release()
    assert refused.exit_code == 2
    assert "works on the lake" in refused.stderr


@pytest.mark.soak
@pytest.mark.req("DUR-05", "DUR-06")
@pytest.mark.timeout(300)
def test_beside_a_server_under_load(tmp_path: Path) -> None:
    """For long: soak/test_pipeline.py."""
    outcome = run_beside(tmp_path, lives=1, services=1, writers=2, keep=300, load_s=(6.0, 9.0), seed=11)
    assert outcome.service_kills == 1
    assert outcome.extent.pruned_to > 0
