"""How replays of snapshots are planned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.lake.lakes import HERE, compact, export_to
from tests.pipeline.history import make_store
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, LOG, SNAPSHOTS
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.audit import replay_tasks
from unisono.pipeline.jobs.audit.findings import FindingTally
from unisono.pipeline.jobs.audit.job import AuditOptions, make_scope
from unisono.pipeline.jobs.audit.replay_tasks import replay_snapshots
from unisono.pipeline.jobs.audit.snapshot_replay import replay_subset
from unisono.pipeline.jobs.audit.tasks import AuditOutcome
from unisono.pipeline.jobs.snapshot.job import snapshot
from unisono.pipeline.jobs.snapshot.publish import publish
from unisono.pipeline.open_log import sqlite_uri
from unisono.pipeline.progress import silent
from unisono.pipeline.spark.executors import run_on_executors

EVENTS = 300


@pytest.mark.req("DUR-07")
@pytest.mark.parametrize("sample", [None, EVENTS])
def test_where_a_footer_is_damaged_the_other_buckets_are_replayed(
    tmp_path: Path, sample: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Footers of large files tell how to split the buckets."""
    make_store(tmp_path / "data", EVENTS)
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=2)
    export_to(lake, tmp_path / "data", EVENTS // 2, EVENTS)
    snapshot(HERE, lake, ShippedModel.open())
    compact(lake)
    damaged, other = lake.table(BY_PARTITION).files()
    Path(lake.storage.uri(BY_PARTITION, damaged.path)).write_bytes(b"PAR1")
    monkeypatch.setattr("unisono.pipeline.task_planning.FEW_EVENTS", 0)
    monkeypatch.setattr("unisono.pipeline.task_planning.TASK_ROWS_MIN", 5)
    files = [file for name in (LOG, BY_PARTITION, SNAPSHOTS) for file in lake.table(name).files()]
    options, tally = AuditOptions(sample), FindingTally(EVENTS)
    scope = make_scope(lake, lake.table(LOG), lake.table(BY_PARTITION), None, options, tally)
    outcome = AuditOutcome(scope)
    outcome.at_fault.add(damaged.path)
    (step,) = replay_snapshots(HERE, scope, files, lake.table(SNAPSHOTS), sample, outcome, silent)
    assert "could not be read completely" in step.note
    assert f"{other.rows} events" in step.note
    assert not list(outcome.tally.kept()), "the file is a finding already"


@pytest.mark.parametrize("sample", [None, 9])
def test_few_tasks_read_the_log_at_the_same_time(
    tmp_path: Path, sample: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log in PostgreSQL has few connections, and an audit has as many tasks as there are cores."""
    make_store(tmp_path / "data", EVENTS)
    lake, store = Lake.at(str(tmp_path / "lake")), sqlite_uri(tmp_path / "data")
    lake.make(buckets=4)
    export_to(lake, tmp_path / "data", EVENTS)
    snapshot(HERE, lake, ShippedModel.open())
    publish(lake, store, ShippedModel.open().version)
    bounds: list[int | None] = []

    def bounded(spark: Any, tasks: Sequence[Any], work: Callable[[Any], Any], **how: Any) -> list[Any]:
        if work is replay_subset:
            bounds.append(how.get("at_once"))
        return run_on_executors(spark, tasks, work, **how)

    monkeypatch.setattr(replay_tasks, "run_on_executors", bounded)
    monkeypatch.setattr(replay_tasks, "readers_at_once", {store: 2}.get, raising=False)
    monkeypatch.setattr(replay_tasks, "tasks_worthwhile", lambda *_: 8)
    files = [file for name in (LOG, BY_PARTITION, SNAPSHOTS) for file in lake.table(name).files()]
    options, tally = AuditOptions(sample), FindingTally(EVENTS)
    scope = make_scope(lake, lake.table(LOG), lake.table(BY_PARTITION), store, options, tally)
    outcome = AuditOutcome(scope)
    replay_snapshots(HERE, scope, files, lake.table(SNAPSHOTS), sample, outcome, silent)
    assert bounds == [2]
    assert not list(outcome.tally.kept())
