from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from unisono.lake.lake import Lake
from unisono.pipeline.jobs.export.job import export
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
    export(spark.sparkContext, store, lake)
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path), "room-007"])
    runpy.run_path(str(EXAMPLES / "lake_reading.py"), run_name="__main__")
    own = sum("room-007" in record.partitions for record in records)
    assert capsys.readouterr().out.splitlines() == [
        f"3000 events in the lake, 2000 of them after 1000, {own} in room-007",
        f"the first {own} were read without Spark",
    ]
