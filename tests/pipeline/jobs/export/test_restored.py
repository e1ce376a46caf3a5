"""A log that was restored from a backup after an export was killed between its two commits."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.lake.lakes import HERE, export_to
from tests.pipeline.history import append, make_store, require_exact
from unisono.cli.lake.info import lake_info
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION
from unisono.pipeline.errors import Mismatch
from unisono.pipeline.jobs.export.job import BOTH, ExportCommit, ExportTask, commit, export, run_task
from unisono.pipeline.open_log import sqlite_uri
from unisono.store.sqlite.log import SqliteLog


@pytest.mark.parametrize("again", [False, True], ids=["others", "the same at another time"])
def test_events_that_only_by_partition_has_must_be_the_logs(tmp_path: Path, again: bool) -> None:
    """Both tables would say other things of one event, and states would be folded from what the log never had."""
    records = make_store(tmp_path / "data", 250)
    shutil.copytree(tmp_path / "data", tmp_path / "restored")
    with closing(SqliteLog.open(tmp_path / "data")) as log:
        lost = append(log, 50)
    with closing(SqliteLog.open(tmp_path / "restored")) as log:
        log.new_epoch()
        if again:
            sent = [replace(record, status_updated_at=record.status_updated_at + 1) for record in lost]
            log.begin([])
            log.commit(sent)
            records += sent
        else:
            records += append(log, 50, seed=2)
    store, lake = sqlite_uri(tmp_path / "data"), Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=4)
    export(HERE, store, lake, to=200)
    task = ExportTask(store, lake.storage, 200, 300, BOTH, 4, 800)
    commit(lake, ExportCommit(200, 300, frozenset((BY_PARTITION,))), [run_task(task)])
    restored = sqlite_uri(tmp_path / "restored")
    with pytest.raises(Mismatch, match=f"remove the directory {BY_PARTITION}, and `unisono lake export`"):
        export(HERE, restored, lake)
    assert lake.head() == 200
    shutil.rmtree(lake.storage.table(BY_PARTITION))
    lake.make(buckets=4)
    export(HERE, restored, lake)
    require_exact(lake, records)


def test_a_log_that_ends_before_the_lake_is_told_of(tmp_path: Path) -> None:
    make_store(tmp_path / "data", 20)
    make_store(tmp_path / "shorter", 15)
    lake = Lake.at(str(tmp_path / "lake"))
    export_to(lake, tmp_path / "data")
    assert "; the log ends at 20, 0 to export\n" in lake_info(lake, sqlite_uri(tmp_path / "data")).text()
    told = lake_info(lake, sqlite_uri(tmp_path / "shorter")).text()
    assert "; the log ends at 15: it is another log, or has lost events\n" in told
