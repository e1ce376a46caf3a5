"""The whole system under seeded schedules and faults: no promise is broken, and every planted bug is seen."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.simulation.loops import simulated_loop
from tests.simulation.mutants import MUTANTS
from tests.simulation.running import STEPS, Exploration, findings_of, shrunk
from tests.simulation.scheduler import ReplayChooser
from unisono.store.sqlite.wal_space import WalSpace

ROOT = Path(__file__).parents[2]
SEEDS = 2_000
SEED_STEPS = 40
"""Less than half of what a run has elsewhere: more seeds find more than longer ones."""

PROCESSES = 2
MUTANT_SEEDS = 150
"""Most bugs are seen by the first seed; those that need a power failure at the right moment take some."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The server says in its log what breaks, which is the point."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.simulation.running", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.timeout(900)
@pytest.mark.req(
    "DUR-02", "DUR-03", "DUR-04", "ORD-01", "ORD-05", "SYNC-01", "SYNC-06", "BCAST-03", "CLIENT-13"
)
def test_no_seed_breaks_a_promise() -> None:
    share = SEEDS // PROCESSES
    runs = [
        started("--steps", str(SEED_STEPS), "--seeds", str(1 + n * share), str((n + 1) * share))
        for n in range(PROCESSES)
    ]
    outputs = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0] * PROCESSES, "\n".join(outputs)
    assert all(f"{share} runs of {SEED_STEPS} steps, 0 with findings" in output for output in outputs)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_planted_bug_is_seen(mutant: str) -> None:
    expected, _ = MUTANTS[mutant]
    seen: set[str] = set()
    for seed in range(1, MUTANT_SEEDS + 1):
        seen |= {finding.partition(":")[0] for finding in findings_of(seed, mutant=mutant)}
        if seen & expected:
            return
    raise AssertionError(f"{MUTANT_SEEDS} seeds show {sorted(seen) or 'nothing'}, not {sorted(expected)}")


def test_a_seed_replays_exactly() -> None:
    runs = [started("--seed", "11", "--digest") for _ in range(2)]
    first, second = (run.communicate()[0] for run in runs)
    assert "digest " in first
    assert first.rpartition(",")[0] == second.rpartition(",")[0]


def test_a_failing_schedule_is_shrunk() -> None:
    mutant = "an_event_is_sent_back_to_its_origin"
    seed = next(seed for seed in range(1, 50) if findings_of(seed, mutant=mutant))
    steps, choices = shrunk(seed, STEPS, mutant)
    assert sum(map(bool, choices)) < STEPS // 4, "most of what happened did not matter"
    assert findings_of(seed, steps, mutant=mutant, chooser=ReplayChooser(choices))


def test_every_small_schedule_with_one_deviation_or_crash() -> None:
    exploration = Exploration(1)
    assert list(exploration.failures()) == []
    assert exploration.runs > 100


def test_an_error_of_the_log_that_no_disk_caused_is_a_finding() -> None:
    with patch.object(WalSpace, "keep", side_effect=AttributeError("planted")):
        (finding,) = findings_of(1)
    assert finding.startswith("StorageError")
    assert "planted" in finding


def test_an_error_in_a_callback_of_the_front_is_a_finding() -> None:
    def fail() -> None:
        raise ValueError("planted")

    loop = simulated_loop(lambda: 0.0)
    loop.call_soon(fail)
    with pytest.raises(AssertionError, match="fail"):
        loop.run_pass()
