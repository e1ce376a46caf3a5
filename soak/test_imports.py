"""Imports killed with -9 while reading, while deciding and many times while loading; then completed and counted.

SOAK_ROUNDS shortens or lengthens it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.pipeline.import_killing import kill_and_complete

LOADING_KILLS = min(40, max(3, int(os.environ.get("SOAK_ROUNDS", "300")) // 20))


@pytest.mark.timeout(300 + 60 * LOADING_KILLS)
@pytest.mark.usefixtures("spark")
def test_killed_while_reading_deciding_and_loading(tmp_path: Path) -> None:
    kill_and_complete(tmp_path, rows=5_000, loading=LOADING_KILLS, seed=time.time_ns())
