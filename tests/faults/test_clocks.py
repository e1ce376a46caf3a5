"""Clocks that are set by an hour or a day, forward and back: see `clocks` for what depends on which."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.clocks import JUMPS_S, jump_clock, require_faketime


@pytest.mark.req("AUTH-04", "HB-02", "ENV-07", "DUR-02", "ORD-01", "SYNC-06", "BCAST-03")
def test_the_clock_of_a_server_jumps_under_load(tmp_path: Path) -> None:
    require_faketime()
    tally = jump_clock(tmp_path / "data", len(JUMPS_S), seed=8)
    assert tally.faults.total() == 2 * len(JUMPS_S)
    assert tally.drafts > 4 * len(JUMPS_S)
