"""The command `lake import`: what it says at the end."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tests.commands import unisono


def test_nothing_but_rejected_rows_is_no_success(spark: SparkSession, tmp_path: Path) -> None:
    """In the Spark of the tests."""
    (tmp_path / "old.jsonl").write_text('[{"id": "a"}]\n{"uuid": "b"}\n')
    place = ("--data", str(tmp_path / "data"), "--staging", str(tmp_path / "staging"))
    done = unisono("lake", "import", str(tmp_path / "old.jsonl"), *place, "--quiet")
    assert done.exit_code == 2
    assert "2 rows: 0 to load, 0 duplicates, 0 in the log already, 2 rejected" in done.stdout
    assert "each of the 2 rows was rejected" in done.stderr
