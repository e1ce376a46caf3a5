"""The same commands on a standalone cluster: one master, two workers, real processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.pipeline.canaries import CULPRIT, append, holders, planted
from tests.pipeline.cluster import Cluster, running_cluster
from tests.pipeline.export_killing import kill_executors
from tests.pipeline.history import make_store
from tests.pipeline.legacy import Legacy
from unisono.ipc.files import read_pipeline_status
from unisono.lake.lake import Lake
from unisono.pipeline.jobs.snapshot.job import latest
from unisono.samples import sample_model
from unisono.store.sqlite.log import SqliteLog

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_the_package_travels_with_spark_submit_while_an_executor_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The executor that takes its place gets it too. More kills: soak/test_exports.py."""
    kill_executors(cluster, tmp_path, events=3_000, kills=1, seed=time.time_ns(), submitted=True)


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_the_whole_pipeline_in_one_application(cluster: Cluster, tmp_path: Path) -> None:
    """Every command that has work for executors, one after the other on the same log and lake.

    The first of them is given a path that means a data directory here and something else in an executor's working
    directory.
    """
    make_store(tmp_path / "unseen", 20)
    with closing(SqliteLog.open(tmp_path / "data")) as log:
        records = append(log, 1_200)
    legacy = Legacy(300, faults=0)
    (tmp_path / "old.jsonl").write_bytes(b"\n".join(legacy.lines()))
    lake = Lake.at(str(tmp_path / "lake"))
    spark = ["--master", cluster.master, *cluster.options("--spark-conf")]
    data = ["--data", str(tmp_path / "data")]
    place = [*data, "--lake", lake.storage.location, *spark]
    retaining = ["--keep-events", "500", "--keep-newest", "100"]
    staging = ["--staging", str(tmp_path / "staging")]
    codes, said = run_all(
        tmp_path,
        ["export", "--data", "/proc/self/cwd/unseen", "--lake", str(tmp_path / "none"), *spark],
        ["run", *place, "--cycles", "1", *retaining, "--out", str(tmp_path / "out")],
        ["import", str(tmp_path / "old.jsonl"), *data, *spark, *staging, "--model", "open"],
        ["erase", *place, "--client", CULPRIT, "--yes"],
        ["compact", *place, "--vacuum-hours", "0", "--verify"],
        ["revalidate", *place, "--model", str(sample_model()), "--against", "open"],
        ["audit", *place, "--full"],
    )
    wanted = {"export": 2, "run": 0, "import": 0, "erase": 0, "compact": 0, "revalidate": 1, "audit": 0}
    assert codes == wanted, said
    assert "cannot read the log in /proc/self/cwd/unseen" in said
    assert "use a PostgreSQL store, or --master local[*]" in said
    told = read_pipeline_status(tmp_path / "data" / "pipeline.json")
    assert told is not None
    assert {name: stage.error for name, stage in told.stages.items() if stage.error} == {}
    assert told.stages["audit"].items == told.stages["report"].items == 1_200
    assert (told.log_pruned_to, told.log_head, told.lake_head) == (700, 1_200, 1_200)
    names = {name for record in records for name in record.partitions}
    assert {row.partition for row in latest(lake, 0)} == names
    assert f"loaded {legacy.planted.accepted} events" in said
    assert f"erased {len(planted(records))} events" in said
    assert list(holders(tmp_path / "data", tmp_path / "lake")) == []
    assert "not compatible: " in said
    assert "sound, events 1 to 1200" in said


def run_all(directory: Path, *commands: list[str]) -> tuple[dict[str, int], str]:
    """Commands in one application, in a working directory: with what each ended, and everything they said."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.one_application", json.dumps(commands)],
        capture_output=True,
        text=True,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    codes = {
        name: int(code) for name, code in re.findall(r"^(\w+) ended with (\d+)$", done.stdout, re.MULTILINE)
    }
    return codes, done.stdout + done.stderr
