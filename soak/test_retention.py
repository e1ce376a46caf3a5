"""Retention killed with -9 again and again while it prunes; then completed.

SOAK_ROUNDS shortens or lengthens it.
"""

from __future__ import annotations

import os

import pytest
from tests.pipeline.jobs.retain.test_retain import Place, kill_and_complete, place, ready  # noqa: F401 (fixtures)

ROUNDS = max(1, int(os.environ.get("SOAK_ROUNDS", "300")) // 50)


@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.timeout(600)
def test_killed_while_pruning(seed: int, place: Place) -> None:  # noqa: F811
    kill_and_complete(place, range(2_700, 300, -400), seed)
