"""A full disk: nothing acknowledged is lost, nothing is committed twice, and it goes on once there is space."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.space import fill_the_disk

CYCLES = 3
"""`soak/test_faults.py` has more of them."""


@pytest.mark.req("DUR-02", "DUR-03", "DUR-04", "ORD-01", "ORD-03", "ORD-05")
def test_a_disk_that_fills_and_is_freed(tmp_path: Path) -> None:
    tally = fill_the_disk(tmp_path, CYCLES, seed=3)
    assert tally.faults["disk full"] == CYCLES
    assert tally.drafts > CYCLES * 4
    assert tally.ends["server_error"] > 0
