from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.lake.guests import optimize, z_order
from tests.lake.lakes import HERE
from tests.pipeline.history import append, make_store, require_exact
from tests.pipeline.processes import WAIT_S, kill, start, wait_until
from tests.pipeline.test_open_log import prune
from unisono.lake.errors import LakeUnusable
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, LOG
from unisono.pipeline.errors import brief
from unisono.pipeline.jobs.compact.foreign_files import rewrite_foreign_files
from unisono.pipeline.jobs.export.follow import Follower, follow_by_polling, resume_place
from unisono.pipeline.jobs.export.job import (
    BOTH,
    ExportCommit,
    ExportResult,
    ExportTask,
    commit,
    export,
    run_task,
)
from unisono.pipeline.open_log import sqlite_uri
from unisono.store.port import Record
from unisono.store.sqlite.log import SqliteLog


def wait_for(lake: Lake, head: int, follower: subprocess.Popen[str]) -> None:
    assert wait_until(lambda: lake.exists() and lake.head() >= head, follower)


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_follow_stop_kill_and_go_on(tmp_path: Path) -> None:
    """Beside a writer: killed by -9, going on where it was, stopped by SIGTERM."""
    log = SqliteLog.open(tmp_path / "data")
    records = append(log, 500)
    lake = Lake.at(str(tmp_path / "lake"))
    arguments = [
        "export",
        "--data",
        str(tmp_path / "data"),
        "--lake",
        lake.storage.location,
        "--buckets",
        "4",
    ]
    arguments += ["--follow", "--every", "0.2", "--events-per-batch", "300"]
    for ending in (signal.SIGKILL, signal.SIGTERM):
        follower = start(*arguments)
        wait_for(lake, len(records), follower)
        for _ in range(3):
            records += append(log, 120)
        wait_for(lake, len(records) - 100, follower)
        if ending == signal.SIGKILL:
            assert kill(follower)
            records += append(log, 50)
            continue
        follower.send_signal(ending)
        out, err = follower.communicate(timeout=WAIT_S)
        assert follower.returncode == 0, err
        assert f"stopped at event {lake.head()}" in out
        assert out.count("\n") == 1, "one line sums it up"
        assert "exported" in err
        assert "Traceback" not in err
    log.close()
    assert lake.head() >= len(records) - 100
    require_exact(lake, records[: lake.head()])


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake.at(str(tmp_path / "lake"))
    made.make(buckets=4)
    return made


def test_batches_that_are_there_already_add_nothing(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """An export runs beside the stream and one was killed between its two commits before; a table is optimized."""
    log = SqliteLog.open(tmp_path / "data")
    records = append(log, 600)
    store = sqlite_uri(tmp_path / "data")
    export(spark, store, lake, to=200)
    half = run_task(ExportTask(store, lake.storage, 200, 350, BOTH, 4, 800))
    commit(lake, ExportCommit(200, 350, frozenset((BY_PARTITION,))), [half])
    told: list[tuple[int, int]] = []
    follower = Follower(
        spark, store, lake, tmp_path / "at", every_s=0.1, events_per_batch=130,
        on_batch=lambda done: told.append((done.since, done.upto)),
    )  # fmt: skip
    export(spark, store, lake, events_per_file=90)
    optimize(lake, BY_PARTITION)
    records += append(log, 300)
    follower.run(threading.Event(), upto=900)
    log.close()
    require_exact(lake, records)
    assert told[-1][1] == 900


@pytest.mark.soak
def test_a_checkpoint_the_lake_has_overtaken_is_given_up(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    records = make_store(tmp_path / "data", 400)
    store, place = sqlite_uri(tmp_path / "data"), tmp_path / "at"
    export(spark, store, lake, to=100)
    Follower(spark, store, lake, place, every_s=0.1).run(threading.Event(), upto=400)
    assert resume_place(place, 400) == place / "from-100"
    records += make_store(tmp_path / "data", 200)
    export(spark, store, lake)
    prune(tmp_path / "data", 500)  # what the checkpoint would read next has left the log
    Follower(spark, store, lake, place, every_s=0.1).run(threading.Event(), upto=600)
    assert [entry.name for entry in place.iterdir()] == ["from-600"]
    require_exact(lake, records)


def test_a_table_that_lags_behind_is_completed_at_the_start(
    spark: SparkSession, lake: Lake, store: str, records: list[Record], tmp_path: Path
) -> None:
    """Also while nothing new comes, as after `by_partition` was removed to have other buckets."""
    export(HERE, store, lake)
    shutil.rmtree(lake.storage.table(BY_PARTITION))
    lake.make(buckets=8)
    follower = Follower(spark, store, lake, tmp_path / "place")
    follower.stop()
    assert lake.view().buckets == 8
    require_exact(lake, records)


def test_places_of_checkpoints(tmp_path: Path) -> None:
    assert resume_place(tmp_path, 7) == tmp_path / "from-7"
    assert resume_place(tmp_path, 7) == tmp_path / "from-7", "nothing planned yet: as good as new"
    offsets, commits = tmp_path / "from-7" / "offsets", tmp_path / "from-7" / "commits"
    offsets.mkdir()
    commits.mkdir()
    for number, reached in ((2, 20), (10, 30)):
        (offsets / str(number)).write_text(f"v1\n{{}}\n{json.dumps({'committed_id': reached})}")
    assert resume_place(tmp_path, 25) == tmp_path / "from-7", (
        "a batch is planned beyond the lake: it is replayed"
    )
    (commits / "2").touch()
    assert resume_place(tmp_path, 20) == tmp_path / "from-7"
    assert resume_place(tmp_path, 31) == tmp_path / "from-31"
    assert not offsets.exists()


def test_a_checkpoint_ahead_of_the_lake_is_given_up(tmp_path: Path) -> None:
    """The lake was put back to an earlier state: what is between would only come with the next event."""
    for name in ("offsets", "commits"):
        (tmp_path / "from-7" / name).mkdir(parents=True)
    assert resume_place(tmp_path, 6) == tmp_path / "from-6"
    place = tmp_path / "from-6"
    for name in ("offsets", "commits"):
        (place / name).mkdir()
    (place / "offsets" / "0").write_text('v1\n{}\n{"committed_id": 20}')
    assert resume_place(tmp_path, 6) == place
    (place / "commits" / "0").touch()
    assert resume_place(tmp_path, 19) == tmp_path / "from-19"
    assert not place.exists()


def test_of_a_log_that_is_gone_the_error_itself_is_told(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    make_store(tmp_path / "data", 20)
    follower = Follower(spark, sqlite_uri(tmp_path / "data"), lake, tmp_path / "at", every_s=0.1)
    (tmp_path / "data").rename(tmp_path / "moved")
    with pytest.raises(Exception, match="holds no log") as caught:
        follower.run(threading.Event())
    assert brief(caught.value).startswith(f"{tmp_path}/data holds no log")


def test_following_another_log_is_refused(
    spark: SparkSession, lake: Lake, store: str, tmp_path: Path
) -> None:
    export(spark, store, lake, to=300)
    make_store(tmp_path / "short", 50)
    with pytest.raises(LakeUnusable):
        Follower(spark, sqlite_uri(tmp_path / "short"), lake, tmp_path / "at")


def test_following_by_polling(store: str, records: list[Record], tmp_path: Path) -> None:
    """As on Spark Connect; nothing of it is Spark's own, so it runs right here."""
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=2)
    batches: list[tuple[int, int]] = []

    def on_batch(done: ExportResult) -> None:
        batches.append((done.since, done.upto))
        z_order(lake, LOG)

    follow_by_polling(
        HERE,
        store,
        lake,
        threading.Event(),
        every_s=0.01,
        events_per_batch=1_600,
        on_batch=on_batch,
        upto=len(records),
    )
    rewrite_foreign_files(HERE, lake)
    assert batches == [(0, 1_600), (1_600, 3_000)]
    require_exact(lake, records)
    stop = threading.Event()
    stop.set()
    follow_by_polling(HERE, store, lake, stop)
    assert lake.head() == 3_000
