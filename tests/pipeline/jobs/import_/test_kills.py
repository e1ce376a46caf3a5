"""An import killed again and again, as real processes: it goes on, commits nothing twice, and counts exactly."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.import_killing import kill_and_complete


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_killed_while_reading_deciding_and_loading(spark: SparkSession, tmp_path: Path) -> None:
    """Many more kills while loading: soak/test_imports.py."""
    kill_and_complete(tmp_path, rows=8_000, loading=1, seed=time.time_ns())
