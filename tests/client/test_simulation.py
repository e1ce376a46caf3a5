"""A client against every mishap a random source can think of, without a socket."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.client.simulation import Simulation


@pytest.mark.req("CLIENT-01", "CLIENT-03", "CLIENT-04", "CLIENT-05", "CLIENT-06", "CLIENT-08", "CLIENT-10")
@pytest.mark.req("CLIENT-11", "CLIENT-12", "CLIENT-13", "CLIENT-14", "CLIENT-15")
@pytest.mark.parametrize("snapshots", [False, True], ids=["whole", "snapshots"])
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), steps=st.integers(0, 150))
def test_everything_comes_together(ordered: bool, snapshots: bool, seed: int, steps: int) -> None:
    with tempfile.TemporaryDirectory(dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")) as directory:
        simulation = Simulation(Random(seed), Path(directory), ordered=ordered, snapshots=snapshots)
        for _ in range(steps):
            simulation.step()
        simulation.settle()
        simulation.check_end()
        simulation.core.close()
