from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from unisono.store.port import Record

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_notebook.py"


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
