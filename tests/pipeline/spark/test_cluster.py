"""The same commands on a standalone cluster: one master, two workers, real processes."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.pipeline.canaries import CULPRIT, append, holders, planted
from tests.pipeline.cluster import Cluster, running_cluster
from tests.pipeline.history import make_store, require_exact
from tests.pipeline.legacy import Legacy
from tests.pipeline.processes import run, start, wait_until
from unisono.ipc.files import read_pipeline_status
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION
from unisono.pipeline.jobs.snapshot.job import latest
from unisono.pipeline.spark.packing import pack
from unisono.samples import sample_model
from unisono.store.sqlite.log import SqliteLog

EXAMPLES = Path(__file__).parents[3] / "examples"
EXECUTOR_KILLS = 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def settings(cluster: Cluster, option: str) -> list[str]:
    return [word for key, value in cluster.conf.items() for word in (option, f"{key}={value}")]


@pytest.mark.timeout(400)
def test_export_while_executors_are_killed(cluster: Cluster, tmp_path: Path) -> None:
    chance = random.Random()
    records = make_store(tmp_path / "data", 6_000)
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=4)
    exporting = start(
        "export", "--data", str(tmp_path / "data"), "--lake", lake.storage.location, "--master", cluster.master,
        "--events-per-file", "150", "--verify", *settings(cluster, "--spark-conf"),
    )  # fmt: skip
    kills = 0
    while kills < EXECUTOR_KILLS:
        written = sum(1 for _ in Path(lake.storage.table(BY_PARTITION)).rglob("*.parquet"))
        if not wait_until(lambda: _more(lake, written), exporting):  # noqa: B023 (called at once)
            break
        time.sleep(chance.uniform(0, 0.3))
        if executors := cluster.executors():
            os.kill(chance.choice(executors), signal.SIGKILL)
            kills += 1
    out, err = exporting.communicate(timeout=200)
    assert exporting.returncode == 0, err
    assert "the lake has all events up to 6000" in out
    assert "verified 6000 events" in err
    assert kills == EXECUTOR_KILLS, "the export was over too soon"
    require_exact(lake, records)


@pytest.mark.timeout(200)
def test_the_package_travels_with_spark_submit(cluster: Cluster, tmp_path: Path) -> None:
    records = make_store(tmp_path / "data", 500)
    lake = Lake.at(str(tmp_path / "lake"))
    pack(tmp_path / "unisono.zip")
    done = subprocess.run(
        [
            Path(sys.executable).parent / "spark-submit", "--master", cluster.master,
            "--py-files", tmp_path / "unisono.zip", *settings(cluster, "--conf"),
            "--driver-java-options", " ".join(cluster.java_options),
            EXAMPLES / "lake_submit.py", "export", "--data", tmp_path / "data", "--lake", lake.storage.location,
        ],
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONF_DIR": str(cluster.settings),
        },
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "the lake has all events up to 500" in done.stdout
    require_exact(lake, records)


@pytest.mark.timeout(400)
def test_the_whole_pipeline_in_one_application(cluster: Cluster, tmp_path: Path) -> None:
    """Every command that has work for executors, one after the other on the same log and lake."""
    with closing(SqliteLog.open(tmp_path / "data")) as log:
        records = append(log, 1_200)
    legacy = Legacy(300, faults=0)
    (tmp_path / "old.jsonl").write_bytes(b"\n".join(legacy.lines()))
    lake = Lake.at(str(tmp_path / "lake"))
    spark = ["--master", cluster.master, *settings(cluster, "--spark-conf")]
    data = ["--data", str(tmp_path / "data")]
    place = [*data, "--lake", lake.storage.location, *spark]
    retaining = ["--keep-events", "500", "--keep-newest", "100"]
    staging = ["--staging", str(tmp_path / "staging")]
    codes, said = run_all(
        ["run", *place, "--cycles", "1", *retaining, "--out", str(tmp_path / "out")],
        ["import", str(tmp_path / "old.jsonl"), *data, *spark, *staging, "--model", "open"],
        ["erase", *place, "--client", CULPRIT, "--yes"],
        ["compact", *place, "--vacuum-hours", "0", "--verify"],
        ["revalidate", *place, "--model", str(sample_model()), "--against", "open"],
        ["audit", *place, "--full"],
    )
    assert codes == {"run": 0, "import": 0, "erase": 0, "compact": 0, "revalidate": 1, "audit": 0}, said
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


def run_all(*commands: list[str]) -> tuple[dict[str, int], str]:
    """Commands in one application: with what each of them ended, and everything they said."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.one_application", json.dumps(commands)],
        capture_output=True,
        text=True,
    )
    codes = {
        name: int(code) for name, code in re.findall(r"^(\w+) ended with (\d+)$", done.stdout, re.MULTILINE)
    }
    return codes, done.stdout + done.stderr


@pytest.mark.timeout(200)
def test_a_log_that_executors_cannot_see(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that means the data directory here and something else in an executor's working directory."""
    make_store(tmp_path / "data", 20)
    monkeypatch.chdir(tmp_path)
    told = run(
        "export",
        "--data",
        "/proc/self/cwd/data",
        "--lake",
        str(tmp_path / "lake"),
        "--master",
        cluster.master,
        *settings(cluster, "--spark-conf"),
    )
    assert told.returncode == 2, told.stderr
    assert "cannot read the log in /proc/self/cwd/data" in told.stderr
    assert "use a PostgreSQL store, or --master local[*]" in told.stderr


def _more(lake: Lake, than: int) -> bool:
    return sum(1 for _ in Path(lake.storage.table(BY_PARTITION)).rglob("*.parquet")) > than
