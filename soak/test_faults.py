"""The loops of `tests/faults/` at full length. SOAK_ROUNDS shortens or lengthens each of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.errors import fail_calls, require_strace

ROUNDS = os.environ.get("SOAK_ROUNDS")
CALLS = int(ROUNDS or 60)


@pytest.mark.req("DUR-02", "DUR-03", "DUR-04", "ORD-01", "ORD-05")
@pytest.mark.timeout(120 + 30 * CALLS)
@pytest.mark.parametrize("call", ["fdatasync", "pwrite64"])
def test_every_call_fails_once(
    tmp_path: Path, call: str, record_property: Callable[[str, object], None]
) -> None:
    require_strace()
    calls = [(call, when) for when in range(1, CALLS + 1)]
    tally = fail_calls(tmp_path / "data", calls, seed=CALLS)
    assert tally.faults.total() == CALLS
    assert tally.drafts > CALLS * 4
    record_property("tally", str(tally))
