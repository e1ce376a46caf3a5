"""The examples for Airflow and Dagster, run by the real schedulers, each in an environment of its own.

.venv/bin/python -m pytest soak/test_schedulers.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from unisono.lake.lake import Lake
from unisono.lake.storage import SNAPSHOTS
from unisono.store.port import Record

ROOT = Path(__file__).parent.parent
PACKAGES = {"airflow": "apache-airflow==3.3.2", "dagster": "dagster==1.13.28"}


@pytest.mark.timeout(1500)
@pytest.mark.usefixtures("_quick_starts")
@pytest.mark.parametrize("scheduler", ["airflow", "dagster"])
def test_the_example_of(scheduler: str, history: tuple[Path, list[Record]], tmp_path: Path) -> None:
    programs = _installed(PACKAGES[scheduler], tmp_path / "environment")
    lake = Lake.at(str(tmp_path / "lake"))
    dags = tmp_path / "dags"
    dags.mkdir()
    for name in ("lake_tasks", "airflow_dag", "dagster_assets"):
        source = (ROOT / "examples" / f"{name}.py").read_text()
        source = source.replace('"postgresql://reader@db/unisono"', repr(f"sqlite:{history[0]}"))
        source = source.replace('"s3://bucket/lake"', repr(lake.storage.location))
        (dags / f"{name}.py").write_text(source.replace('"sc://spark:15002"', "'local[2]'"))
    settings = {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(dags)]),
        "DAGSTER_HOME": str(tmp_path),
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
    }
    commands = {
        "airflow": (["airflow", "db", "migrate"], ["airflow", "dags", "test", "unisono_lake", "2026-01-02"]),
        "dagster": (
            ["dagster", "asset", "materialize", "--select", "*", "-f", str(dags / "dagster_assets.py")],
        ),
    }
    for command in commands[scheduler]:
        said = _run(programs / command[0], *command[1:], **settings)
    assert "sound, events 1 to 3000" in said or scheduler == "dagster"
    assert not [line for line in said.splitlines() if "deprecated" in line and str(dags) in line]
    assert lake.head() == len(history[1])
    assert lake.table(SNAPSHOTS).folded_upto(0) == lake.head()


def _installed(package: str, where: Path) -> Path:
    """The package in a new environment, which also sees the packages of this one."""
    _run(Path(sys.executable), "-m", "venv", str(where))
    _run(where / "bin" / "python", "-m", "pip", "install", "--quiet", package)
    (folder,) = where.glob("lib/python*/site-packages")
    (folder / "zz_unisono.pth").write_text(sysconfig.get_paths()["purelib"])
    return where / "bin"


def _run(program: Path, *arguments: str, **settings: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(  # noqa: S603
        [program, *arguments],
        env=environment | settings,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
