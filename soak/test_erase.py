"""Erasures killed with -9 again and again, at other moments each time; then completed and looked for in every file.

SOAK_ROUNDS shortens or lengthens it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.jobs.erase.killing import kill_and_complete

HISTORIES = max(1, int(os.environ.get("SOAK_ROUNDS", "300")) // 30)
KILLS = 6


@pytest.mark.parametrize("seed", range(HISTORIES))
@pytest.mark.timeout(600)
def test_killed_anywhere(seed: int, spark: SparkSession, tmp_path: Path) -> None:
    assert kill_and_complete(spark, tmp_path, KILLS, seed) >= 4
