from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.commands import unisono
from tests.pipeline.history import make_store, require_exact
from tests.pipeline.processes import WAIT_S, run, start, wait_until
from unisono.lake.errors import LakeUnusable
from unisono.lake.lake import Lake
from unisono.pipeline.errors import brief


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_from_end_to_end(spark: SparkSession, tmp_path: Path) -> None:
    """One process, where no quick start is prepared; then commands that find Spark running.

    That a process with a quick start says nothing of Spark's own is in test_publish.
    """
    records = make_store(tmp_path / "data", 2_000)
    place = ["--data", str(tmp_path / "data"), "--lake", str(tmp_path / "lake")]
    first = run(
        "export", *place, "--to", "700", "--buckets", "4", "--spark-conf", "spark.driver.memory=600m",
        UNISONO_CACHE_DIR=str(tmp_path / "nothing prepared"),
    )  # fmt: skip
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("exported 700 events in ")
    assert first.stdout.endswith("events/s): the lake has all events up to 700\n")
    assert first.stderr.endswith("exported 700 of 700 events\n")
    rest = unisono(
        "lake", "export", "--store", f"sqlite:{tmp_path}/data", "--lake", str(tmp_path / "lake"),
        "--events-per-file", "300", "--verify", "--quiet",
    )  # fmt: skip
    assert rest.exit_code == 0, rest.output
    assert "exported" not in rest.stderr
    told = unisono("lake", "info", *place, "--json")
    assert json.loads(told.stdout)["head"] == 2_000
    compacted = unisono("lake", "compact", *place, "--vacuum-hours", "0", "--verify")
    assert compacted.exit_code == 0, compacted.output
    assert "files became" in compacted.stdout
    assert "old files removed" in compacted.stdout
    assert "verified 2000 events" in compacted.stderr
    require_exact(Lake.at(str(tmp_path / "lake")), records)


def test_with_nothing_to_do_no_spark_is_started(tmp_path: Path) -> None:
    make_store(tmp_path / "data", 0)
    place = ["--data", str(tmp_path / "data"), "--lake", str(tmp_path / "lake")]
    no_java = {"JAVA_HOME": str(tmp_path / "nowhere")}
    exported = run("export", *place, **no_java)
    assert (exported.returncode, exported.stdout) == (
        0,
        "nothing to export: the lake has all events up to 0\n",
    )
    compacted = run("compact", *place, **no_java)
    assert compacted.returncode == 0
    assert "nothing to join" in compacted.stdout
    assert "empty, 16 buckets; the log ends at 0, 0 to export" in run("info", *place, **no_java).stdout


def test_clear_errors(tmp_path: Path) -> None:
    make_store(tmp_path / "data", 20)
    data, place = str(tmp_path / "data"), ["--lake", str(tmp_path / "lake")]
    connect = ["--master", "sc://127.0.0.1:1"]
    cases = {
        ("export", "--data", data, *place, "--master", "spark://127.0.0.1:1"): "no Spark master answers",
        ("export", "--data", data, *place, *connect): "no Spark Connect server answers",
        ("export", "--data", data, *place, *connect, "--follow"): "no Spark Connect server answers",
        ("run", "--data", data, *place, *connect, "--cycles", "1"): "no Spark Connect server answers",
        (
            "export",
            "--data",
            data,
            *place,
            "--master",
            "local-cluster[0,0,0]",
        ): "cannot be started on local-cluster[0,0,0]: SparkException",
    }
    started = {arguments: start(*arguments) for arguments in cases}
    no_java = start("export", "--data", data, *place, JAVA_HOME=str(tmp_path))
    without_spark = {
        ("export", "--data", str(tmp_path / "none"), *place): "holds no log",
        ("export", "--data", data, *place, "--to", "21"): "the log ends at 20, 21 is requested",
        ("export", "--store", "mysql://x", *place): "sqlite:DIRECTORY or postgresql://",
        ("info", "--lake", str(tmp_path / "no lake")): "`unisono lake export` makes one",
    }
    for arguments, text in without_spark.items():
        told = unisono("lake", *arguments)
        assert told.exit_code == 2, arguments
        assert told.output.startswith("unisono: ")
        assert text in told.output
        assert told.output.count("\n") == 1
    for arguments, process in started.items():
        _, err = process.communicate(timeout=WAIT_S)
        assert process.returncode == 2, arguments
        assert err.startswith("unisono: ")
        assert cases[arguments] in err
        assert err.count("\n") == 1
    _, err = no_java.communicate(timeout=WAIT_S)
    assert no_java.returncode == 2
    assert "apt install openjdk-17-jre-headless" in err
    assert not (tmp_path / "lake").exists()


@pytest.mark.soak
@pytest.mark.timeout(120)
def test_ctrl_c(tmp_path: Path) -> None:
    """A terminal sends it to the whole group of processes; Java and its workers are not in ours."""
    make_store(tmp_path / "data", 2_000)
    place = ["--data", str(tmp_path / "data"), "--lake", str(tmp_path / "lake"), "--master", "local[2]"]
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # ignored in a background job, and inherited
    exporting = start("export", *place, "--events-per-file", "2")
    signal.signal(signal.SIGINT, before)
    assert wait_until(lambda: any(tmp_path.glob("lake/by_partition/**/*.parquet")), exporting)
    children = Path(f"/proc/{exporting.pid}/task/{exporting.pid}/children").read_text().split()
    assert {os.getpgid(int(child)) for child in children} == {int(child) for child in children}
    exporting.send_signal(signal.SIGINT)
    _, err = exporting.communicate(timeout=60)
    assert exporting.returncode == 1
    told = [line for line in err.splitlines() if not line.startswith("exported ")]
    assert told == ["unisono: interrupted; completed work is kept, and the same command continues from there"]


def test_the_number_of_buckets_stays(tmp_path: Path) -> None:
    make_store(tmp_path / "data", 0)
    place = ["--data", str(tmp_path / "data"), "--lake", str(tmp_path / "lake")]
    for buckets in ("4", "4"):
        assert unisono("lake", "export", *place, "--buckets", buckets).exit_code == 0
    told = unisono("lake", "export", *place, "--buckets", "7")
    assert told.exit_code == 2
    assert "the lake has 4 buckets: to have 7, remove its table by_partition" in told.output
    assert unisono("lake", "export", *place).exit_code == 0


def test_usage() -> None:
    assert (
        "give --data or --store"
        in unisono("lake", "info", "--data", "a", "--store", "b", "--lake", "c").output
    )
    for arguments, words in (
        (("--follow", "--to", "7"), "do not go with --follow"),
        (("--follow", "--verify"), "do not go with --follow"),
        (("--every", "3"), "are for --follow"),
        (("--checkpoint", "x"), "are for --follow"),
    ):
        assert words in unisono("lake", "export", "--lake", "c", *arguments).output
    assert "is not K=V" in unisono("lake", "info", "--lake", "c", "--spark-conf", "x").output
    assert "0s is too short" in unisono("lake", "run", "--lake", "c", "--every", "0s").output
    assert "goes with --keep" in unisono("lake", "run", "--lake", "c", "--keep-newest", "5").output
    told = unisono("lake", "export", "--follow", "--store", "postgresql://u:secret@h/x", "--lake", "s3://l")
    assert told.exit_code == 2
    assert "secret" not in told.output


def test_without_the_packages(tmp_path: Path) -> None:
    code = "import sys; sys.modules['deltalake'] = None; from unisono.cli.main import main; main()"
    command = [sys.executable, "-c", code, "lake", "info", "--lake", str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 2
    assert "-m pip install " in told.stderr
    assert "[pipeline]'" in told.stderr


def test_of_a_failed_job_the_error_itself_is_shown() -> None:
    text = (
        "Job aborted due to stage failure: …\nTraceback (most recent call last):\n  File …\n"
        "unisono.pipeline.errors.NoSuchRange: event 5 is not in the log\n\tat java.lang.Thread\n"
    )
    assert brief(RuntimeError(text)) == "event 5 is not in the log"
    assert brief(RuntimeError("x\nOSError: [Errno 28] No space left on device\n at y")) == (
        "OSError: [Errno 28] No space left on device"
    )
    assert brief(RuntimeError("one line\nmore")) == "RuntimeError: one line"
    assert brief(KeyError("x")) == "KeyError: 'x'"
    assert brief(TimeoutError()) == "TimeoutError"
    java = (
        "An error occurred while calling o5.collect.\n: org.apache.spark.SparkException: Job aborted.\n\tat a.b\n"
        "Caused by: java.io.IOException: No space left on device\n\tat java.base/c.d\n\t... 3 more\n"
    )
    assert brief(RuntimeError(java)) == "IOException: No space left on device"


def test_an_error_of_the_lake_is_one_line() -> None:
    text = "Generic error\n   \x1b[31m↳\x1b[0m Unable to copy\n   \x1b[31m↳\x1b[0m No space left on device\n"
    assert brief(OSError(text)) == "OSError: Generic error: Unable to copy: No space left on device"
    assert brief(LakeUnusable(f"lake/log cannot be made: {text}")).endswith("No space left on device")
