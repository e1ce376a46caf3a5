"""Thousands of power failures of a log. SOAK_ROUNDS shortens or lengthens it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.simulation.disk import simulated_disks
from tests.store.sqlite.power import survive

SEEDS = int(os.environ.get("SOAK_ROUNDS", "5000"))


@pytest.mark.timeout(3_600)
def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    with simulated_disks() as vfs:
        for seed in range(1_000, 1_000 + SEEDS):
            assert survive(seed, tmp_path / "data", vfs) == [], f"seed {seed}"
            shutil.rmtree(tmp_path / "data")
