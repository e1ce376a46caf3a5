"""Nothing acknowledged is lost, and nothing is told in two ways, whatever part of a server is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.behaviour.server.killing import TARGETS
from tests.faults.kills import kill_parts

KILLS = 30
"""`soak/test_killing.py` kills more often."""


@pytest.mark.req("DUR-02", "DUR-03", "ORD-01", "ORD-02", "ORD-03", "ORD-05", "BCAST-03", "SYNC-06")
def test_parts_of_a_server_killed_at_random(tmp_path: Path) -> None:
    tally = kill_parts(tmp_path / "data", KILLS, seed=1)
    assert set(tally.faults) == {f"kill -9 of the {target}" for target in TARGETS}
    assert tally.faults.total() == KILLS
    assert tally.drafts > KILLS * 8
    assert tally.recovered > 0, "no kill fell between a commit and its answer: the load is too light"
