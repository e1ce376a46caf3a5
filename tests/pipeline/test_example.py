from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from tests.lake.lakes import HERE
from tests.pipeline.history import make_store
from unisono.lake.lake import Lake, bucket_of
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.open_log import sqlite_uri
from unisono.store.port import Record

EXAMPLES = Path(__file__).parents[2] / "examples"
EXAMPLE = EXAMPLES / "spark_notebook.py"


def test_the_notebook_runs(
    spark: SparkSession,  # a notebook's session is found by `session`, not made anew
    history: tuple[Path, list[Record]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(history[0])])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    shown = capsys.readouterr().out
    assert "events: 3000\n" in shown
    assert "streamed: 3000\n" in shown
    assert "|event   |counted|750  |" in shown
    names = [name for record in history[1] for name in record.partitions]
    busiest = max(sorted(set(names), key=str.encode), key=names.count)
    assert f"history of {busiest}\n" in shown


def test_a_lake_is_read(
    spark: SparkSession,
    store: str,
    records: list[Record],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lake = Lake.at(str(tmp_path))
    lake.make(buckets=2)
    export(spark, store, lake)
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path), "room-007"])
    runpy.run_path(str(EXAMPLES / "lake_reading.py"), run_name="__main__")
    own = sum("room-007" in record.partitions for record in records)
    assert capsys.readouterr().out.splitlines() == [
        f"3000 events in the lake, {own} in room-007; of the newest 1000 were read",
        f"the first {own} were read without Spark",
    ]


def test_one_partition_with_other_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    records = make_store(tmp_path / "data", 16_000)
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=4)
    export(HERE, sqlite_uri(tmp_path / "data"), lake, to=15_500)
    export(HERE, sqlite_uri(tmp_path / "data"), lake)
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "lake"), "room-007"])
    runpy.run_path(str(EXAMPLES / "lake_engines.py"), run_name="__main__")
    own = [record.committed_id for record in records if "room-007" in record.partitions]
    number = bucket_of("room-007", 4)
    found = f"{len(own)} events, from {own[0]} to {own[-1]}"
    assert capsys.readouterr().out.splitlines() == [
        f"room-007 is in bucket {number}: 2 of 5 files can have it",
        *(f"{engine}: {found}" for engine in ("duckdb", "polars", "pandas")),
    ]


def test_the_lake_notebook_runs(
    spark: SparkSession,
    history: tuple[Path, list[Record]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On Spark Connect: spark/test_connect.py."""
    monkeypatch.setattr(sys, "argv", ["", str(history[0]), str(tmp_path / "lake")])
    runpy.run_path(str(EXAMPLES / "lake_notebook.py"), run_name="__main__")
    require_notebook(capsys.readouterr().out)


def require_notebook(shown: str) -> None:
    assert "exported 3000 events, the lake has all up to 3000\n" in shown
    assert "|   event| 1500|" in shown
    assert re.search(r"^room-\d+: \d+ changes in the second half\n  [-+~>] ", shown, re.MULTILINE)
    assert "sound, events 1 to 3000" in shown


@pytest.mark.parametrize("name", ["airflow_dag", "dagster_assets"])
def test_tasks_of_a_scheduler(
    spark: SparkSession,
    store: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """With stand-ins for the schedulers, which are not installed; with the real ones: soak/test_schedulers.py."""
    ran: list[object] = []
    for module, content in _schedulers(ran).items():
        monkeypatch.setitem(sys.modules, module, content)
    monkeypatch.syspath_prepend(EXAMPLES)
    source = (EXAMPLES / f"{name}.py").read_text()
    places = {"postgresql://reader@db/unisono": store, "s3://bucket/lake": str(tmp_path / "lake")}
    for shown, real in places.items():
        source = source.replace(f'"{shown}"', repr(real))
    source = source.replace('"sc://spark:15002"', "None")  # the running session
    exec(compile(source, name, "exec"), {"__name__": name})
    exported, folded, audited = ran
    assert exported == {"events": 3_000, "upto": 3_000}
    assert isinstance(folded, dict)
    assert folded["upto"] == 3_000
    assert str(audited).startswith("sound, events 1 to 3000")


def _schedulers(ran: list[object]) -> dict[str, ModuleType]:
    """Run a task where the scheduler would plan it."""

    class Planned:
        def __rshift__(self, after: Planned) -> Planned:
            return after

    def task(work: Callable[..., object]) -> Callable[..., Planned]:
        def plan(*arguments: object) -> Planned:
            ran.append(work(*arguments))
            return Planned()

        return plan

    def dag(**_: object) -> Callable[[Callable[[], None]], Callable[[], None]]:
        return lambda flow: flow

    def asset(work: Callable[[], object] | None = None, **_: object) -> object:
        return asset if work is None else work

    def definitions(assets: list[Callable[[], object]]) -> None:
        ran.extend(work() for work in assets)

    airflow, sdk, dagster = (
        ModuleType("airflow"),
        ModuleType("airflow.sdk"),
        ModuleType("dagster"),
    )
    vars(sdk).update(dag=dag, task=task)
    vars(dagster).update(asset=asset, Definitions=definitions)
    return {"airflow": airflow, "airflow.sdk": sdk, "dagster": dagster}
