"""kill -9, three hundred times."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.behaviour.server.killing import run_rounds

ROUNDS = int(os.environ.get("SOAK_ROUNDS", "300"))


@pytest.mark.req("DUR-02", "DUR-03", "ORD-01", "ORD-05")
@pytest.mark.timeout(60 + 20 * ROUNDS)
def test_nothing_acknowledged_is_lost_however_often_it_is_killed(tmp_path: Path) -> None:
    tally = run_rounds(tmp_path / "data", ROUNDS, seed=ROUNDS)
    assert sum(tally.kills.values()) == ROUNDS
    assert tally.drafts > ROUNDS * 8
    assert tally.recovered > 0
