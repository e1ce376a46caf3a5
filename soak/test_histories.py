"""Random histories through a real authority, for long. SOAK_ROUNDS is how many thousands of actions each has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.authority.states.random_history import eight_lives, nothing_in_memory, one_life

THOUSANDS = os.environ.get("SOAK_ROUNDS")
ONE_LIFE = 1_000 * max(int(THOUSANDS or 100), 6)
EIGHT_LIVES = 1_000 * int(THOUSANDS or 20)
FROM_THE_LOG = 1_000 * min(int(THOUSANDS or 4), 4)
"""Without snapshots the whole history is read for each batch: time grows with its square."""


@pytest.mark.req("VAL-01", "VAL-04", "VAL-05", "TREE-09", "TREE-10", "TREE-11", "SUBMIT-02")
@pytest.mark.timeout(60 + ONE_LIFE // 100)
def test_one_life(tmp_path: Path) -> None:
    one_life(tmp_path / "data", ONE_LIFE)


@pytest.mark.req("TREE-11", "DUR-02", "DUR-07")
@pytest.mark.timeout(60 + EIGHT_LIVES // 50)
@pytest.mark.parametrize("snapshot_every", [0, 100])
def test_eight_lives(tmp_path: Path, snapshot_every: int) -> None:
    eight_lives(tmp_path / "data", EIGHT_LIVES, snapshot_every)


@pytest.mark.req("TREE-11", "DUR-07", "LIM-05")
@pytest.mark.timeout(60 + EIGHT_LIVES // 50)
@pytest.mark.parametrize(("snapshot_every", "count"), [(0, FROM_THE_LOG), (50, EIGHT_LIVES)])
def test_nothing_in_memory(tmp_path: Path, snapshot_every: int, count: int) -> None:
    nothing_in_memory(tmp_path / "data", count, snapshot_every)
