"""Values and histories left to chance, against other implementations, for long. SOAK_ROUNDS thousands of each."""

from __future__ import annotations

import os

import pytest
from tests.model.test_tree_random import compare_with_the_oracle
from tests.protocol.test_canonical_random import (
    compare_damaged_text,
    compare_number_literals,
    compare_with_rfc8785,
)

THOUSANDS = int(os.environ.get("SOAK_ROUNDS", "100"))
SEEDS = min(THOUSANDS, 20)


@pytest.mark.req("ORD-06", "ORD-07")
@pytest.mark.timeout(60 + 5 * THOUSANDS)
def test_canonical_text_is_that_of_the_rfc8785_library() -> None:
    compare_with_rfc8785(1_000 * THOUSANDS)


@pytest.mark.req("ORD-06", "ORD-07")
@pytest.mark.timeout(60 + 10 * THOUSANDS)
def test_text_is_read_as_a_strict_reader_does() -> None:
    compare_damaged_text(1_000 * THOUSANDS)
    compare_number_literals(1_000 * THOUSANDS)


@pytest.mark.req("TREE-01", "TREE-02", "TREE-03", "TREE-04", "TREE-05", "TREE-06", "TREE-07", "TREE-08")
@pytest.mark.req("TREE-10", "TREE-11", "VAL-04", "VAL-05")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("calm", [False, True])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_long_history_agrees_with_the_oracle(seed: int, calm: bool) -> None:
    compare_with_the_oracle(seed, 1_200, calm=calm)
