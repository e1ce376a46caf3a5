"""kill -9 of parts of a server, two hundred times with one front and as often with two."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.faults.kills import kill_parts

KILLS = int(os.environ.get("SOAK_ROUNDS", "200"))


@pytest.mark.req("DUR-02", "DUR-03", "ORD-01", "ORD-05")
@pytest.mark.timeout(60 + 20 * KILLS)
@pytest.mark.parametrize("fronts", [1, 2])
def test_nothing_acknowledged_is_lost_however_often_it_is_killed(tmp_path: Path, fronts: int) -> None:
    tally = kill_parts(tmp_path / "data", KILLS, KILLS + fronts, "--fronts", str(fronts))
    assert tally.faults.total() == KILLS
    assert tally.drafts > KILLS * 8
    assert tally.recovered > 0
