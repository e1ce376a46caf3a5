"""Every job and the data source on a real Spark Connect server, with the results of a classic session."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.behaviour.server.harness import running
from tests.pipeline import processes
from tests.pipeline.canaries import CULPRIT, append, holders, planted
from tests.pipeline.connect_server import running_connect_server
from tests.pipeline.history import read_store
from tests.pipeline.legacy import Legacy
from tests.pipeline.spark.connect_steps import make_report, results
from tests.pipeline.spark.test_cluster import ROOT, run_all
from tests.pipeline.test_example import require_notebook
from unisono.ipc.files import read_pipeline_status
from unisono.samples import sample_model
from unisono.store.port import Record
from unisono.store.sqlite.log import SqliteLog


@pytest.fixture(scope="module")
def server(_quick_starts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_connect_server(tmp_path_factory.mktemp("connect")) as address:
        yield address


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_results_are_those_of_a_classic_session(
    spark: SparkSession, server: str, store: str, tmp_path: Path
) -> None:
    """Byte for byte: rows, states, audit, report, data source and stream; and the sink commits each event once."""
    with running(tmp_path / "served", "--model", "open") as accepting:
        done = subprocess.run(
            [
                sys.executable, "-m", "tests.pipeline.spark.connect_steps", server, store, str(tmp_path),
                accepting.url, str(accepting.secret_file),
            ],
            capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        submitted = sorted(record.id for record in read_store(accepting.data))
    found = json.loads((tmp_path / "results.json").read_text())
    assert found.pop("refused") != [], "options are checked on the server and told to the client"
    elsewhere, setting = found.pop("elsewhere")
    assert (
        f"a Spark session on a Spark Connect server at {server.removeprefix('sc://')}, not on sc://"
        in elsewhere
    )
    assert setting.startswith("a running Spark cannot take spark.executor.memory=9g: set it where")
    classic = json.loads(json.dumps(results(spark, store, str(tmp_path / "classic" / "lake"))))
    assert found == classic
    assert found["error"] == "event 7 differs"
    assert found["audited"][0].startswith("sound, events 1 to 3000")
    assert submitted == sorted(f"connect-{number}" for number in range(60))
    make_report(spark, str(tmp_path / "lake"), tmp_path / "classic-report")
    ours = {path.relative_to(tmp_path / "report"): path.read_bytes() for path in _files(tmp_path / "report")}
    theirs = {
        path.relative_to(tmp_path / "classic-report"): path.read_bytes()
        for path in _files(tmp_path / "classic-report")
    }
    assert ours == theirs
    require_notebook((tmp_path / "notebook.txt").read_text())


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_every_command(server: str, tmp_path: Path) -> None:
    with closing(SqliteLog.open(tmp_path / "data")) as log:
        records: list[Record] = append(log, 600)
    legacy = Legacy(100, faults=0)
    (tmp_path / "old.jsonl").write_bytes(b"\n".join(legacy.lines()))
    data = ["--data", str(tmp_path / "data")]
    place = [*data, "--lake", str(tmp_path / "lake"), "--master", server]
    codes, said = run_all(
        tmp_path,
        [
            "run",
            *place,
            "--cycles",
            "1",
            "--keep-events",
            "300",
            "--keep-newest",
            "100",
            "--out",
            str(tmp_path / "out"),
        ],
        ["import", str(tmp_path / "old.jsonl"), *data, "--master", server, "--model", "open"],
        ["export", *place, "--verify", "--explain"],
        ["erase", *place, "--client", CULPRIT, "--yes"],
        ["compact", *place, "--vacuum-hours", "0", "--verify"],
        ["revalidate", *place, "--model", str(sample_model()), "--against", "open"],
        ["snapshot", *place, "--rebuild", "--publish", "--explain"],
        ["retain", *place, "--keep-events", "200", "--keep-newest", "100", "--explain"],
        ["report", *place, "--out", str(tmp_path / "report"), "--explain"],
        ["audit", *place, "--full", "--record", "--explain"],
        ["views", "--lake", str(tmp_path / "lake"), "--master", server],
    )
    wanted = {
        "run": 0, "import": 0, "export": 0, "erase": 0, "compact": 0, "revalidate": 1, "snapshot": 0, "retain": 0,
        "report": 0, "audit": 0, "views": 0,
    }  # fmt: skip
    assert codes == wanted, said
    for plan in ("jobs.export", "fold", "jobs.retain", "jobs.report", "jobs.audit"):
        assert re.search(rf"^-- {re.escape(plan)}\..*\n== Physical Plan ==", said, re.MULTILINE), plan
    status = read_pipeline_status(tmp_path / "data" / "pipeline.json")
    assert status is not None
    assert {name: stage.error for name, stage in status.stages.items() if stage.error} == {}
    assert (status.log_pruned_to, status.log_head, status.lake_head) == (300, 600, 600)
    assert f"loaded {legacy.planted.accepted} events" in said
    assert "-- jobs.export.job.run_task\n== Physical Plan ==" in said
    assert f"erased {len(planted(records))} events" in said
    assert list(holders(tmp_path / "data", tmp_path / "lake")) == []
    assert "sound, events 1 to " in said


@pytest.mark.soak
@pytest.mark.timeout(200)
def test_following(server: str, store: str, tmp_path: Path) -> None:
    following = processes.start(
        "export", "--store", store, "--lake", str(tmp_path / "lake"), "--master", server, "--follow", "--every",
        "0.1", "--events-per-batch", "1600",
    )  # fmt: skip
    assert following.stderr is not None
    seen = []
    for line in following.stderr:
        seen.append(line)
        if "1601 to 3000" in line:
            break
    following.terminate()
    out, _ = following.communicate(timeout=60)
    assert following.returncode == 0, seen
    assert "exported 3000 events" in out


RESTARTED = """
import sys, threading
from pathlib import Path
from tests.pipeline.connect_server import running_connect_server
from tests.ports import free_port
from unisono.pipeline import session
from unisono.pipeline.errors import PipelineError
folder, port, sessions = Path(sys.argv[1]), free_port(), []
for _ in range(2):
    with running_connect_server(folder, port=port) as address:
        for _ in range(2):  # the second finds the first's, from another thread
            thread = threading.Thread(target=lambda: sessions.append(session(address)))
            thread.start()
            thread.join()
        print(sessions[-1] is sessions[-2], sessions[-1] is sessions[0], sessions[-1].range(5).count())
try:
    session(address)
except PipelineError as error:
    print(error)
print(session("local[1]", quick=True).range(5).count())
"""


@pytest.mark.soak
@pytest.mark.timeout(200)
@pytest.mark.usefixtures("_quick_starts")
def test_a_server_that_was_started_again(tmp_path: Path) -> None:
    """A long-lived process, of a scheduler for example, asks for a session again and has one, also one of its own."""
    done = subprocess.run(
        [sys.executable, "-c", RESTARTED, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.startswith("True True 5\nTrue False 5\nno Spark Connect server answers at sc://"), (
        done.stdout + done.stderr
    )
    assert done.stdout.endswith("\n5\n"), done.stdout + done.stderr


def test_nobody_there(tmp_path: Path) -> None:
    done = processes.run(
        "export", "--data", str(tmp_path), "--lake", str(tmp_path / "lake"), "--master", "sc://127.0.0.1:1"
    )
    assert done.returncode == 2
    assert "unisono: " in done.stderr
