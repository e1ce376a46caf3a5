"""Damaged input for codec, canonicaliser, partitions and tree, a million in all. SOAK_ROUNDS percent of that."""

from __future__ import annotations

import os

import pytest
from tests.fuzz.targets import TARGETS, run

PERCENT = int(os.environ.get("SOAK_ROUNDS", "100"))


@pytest.fixture(scope="session", autouse=True)
def _quick_starts() -> None:
    """In place of the one that prepares Spark, which nothing here needs."""


@pytest.mark.req("ENV-01", "ORD-06", "ORD-07", "PART-01", "TREE-01", "ERR-03")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", TARGETS)
def test_damaged_input_does_nothing_undefined(target: str) -> None:
    run(target, 1_000_000, 2_500 * PERCENT)
