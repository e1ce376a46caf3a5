"""Acknowledged means on disk: power failures at any moment, unsynced writes lost, torn and reordered."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from tests.simulation.disk import simulated_disks
from tests.store.sqlite.power import survive
from unisono.store.port import StorageError
from unisono.store.sqlite.wal_space import WalSpace

SEEDS = 300
CONTROL_SEEDS = 40


@pytest.mark.req("DUR-02", "DUR-04", "ORD-01")
def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    """More seeds: soak/test_power_loss.py."""
    with simulated_disks() as vfs:
        wrong = {seed: found for seed in range(SEEDS) if (found := survive(seed, tmp_path / str(seed), vfs))}
    assert wrong == {}


def test_a_log_that_syncs_less_does_lose_something(tmp_path: Path) -> None:
    """The control: a disk that lost nothing would prove nothing."""
    with simulated_disks() as vfs:
        lost = sum(
            bool(survive(seed, tmp_path / str(seed), vfs, lambda each: each.pragma("synchronous", "normal")))
            for seed in range(CONTROL_SEEDS)
        )
    assert lost > CONTROL_SEEDS // 10


def test_an_error_of_our_own_is_not_taken_for_a_fault_of_the_disk(tmp_path: Path) -> None:
    """It would end each life after its first group, and nothing would ever be lost."""
    planted = patch.object(WalSpace, "keep", side_effect=AttributeError("planted"))
    with simulated_disks() as vfs, planted, pytest.raises(StorageError, match="planted"):
        survive(1, tmp_path / "data", vfs)
