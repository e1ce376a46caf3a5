"""Random histories through a real authority; `soak/test_histories.py` plays them for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.authority.states.random_history import eight_lives, nothing_in_memory, one_life


@pytest.mark.req("VAL-01", "VAL-04", "VAL-05", "TREE-09", "TREE-10", "TREE-11", "SUBMIT-02")
def test_thousands_of_actions(tmp_path: Path) -> None:
    one_life(tmp_path / "data", 2_000)


@pytest.mark.req("TREE-11", "DUR-02", "DUR-07")
@pytest.mark.parametrize("snapshot_every", [0, 100])
def test_thousands_of_actions_over_restarts(tmp_path: Path, snapshot_every: int) -> None:
    eight_lives(tmp_path / "data", 1_600, snapshot_every)


@pytest.mark.req("TREE-11", "DUR-07", "LIM-05")
@pytest.mark.parametrize(("snapshot_every", "count"), [(0, 400), (50, 1_200)])
def test_thousands_of_actions_with_nothing_kept_in_memory(
    tmp_path: Path, snapshot_every: int, count: int
) -> None:
    nothing_in_memory(tmp_path / "data", count, snapshot_every)
