"""The simulation for long: seeds nobody has tried, longer runs, and small schedules with two deviations.

SOAK_ROUNDS is the number of seeds. A seed that fails is printed, and runs again with
`python -m tests.simulation.running --seed N --steps 600 --shrink`.
"""

from __future__ import annotations

import os
import time

import pytest
from tests.simulation.running import Exploration
from tests.simulation.test_simulation import started

SEEDS = int(os.environ.get("SOAK_ROUNDS", "5000"))
STEPS = 600
EXPLORED = min(20_000, SEEDS * 4)


@pytest.mark.timeout(7_200)
def test_seeds_nobody_has_tried() -> None:
    first = int(time.time())
    run = started("--seeds", str(first), str(first + SEEDS - 1), "--steps", str(STEPS))
    output, _ = run.communicate()
    assert run.returncode == 0, output


@pytest.mark.timeout(7_200)
def test_small_schedules_with_two_deviations() -> None:
    exploration = Exploration(2, runs_max=EXPLORED)
    assert list(exploration.failures()) == []
    print(f"{exploration.runs} schedules")  # noqa: T201
