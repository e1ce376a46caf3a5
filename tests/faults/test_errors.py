"""A disk that fails: nothing is acknowledged that is not durable, and a failed sync is not tried again (DUR-04)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.errors import fail_calls, require_strace

CALLS = [(call, when) for when in (1, 2, 3, 7, 19, 40) for call in ("fdatasync", "pwrite64")]
"""`soak/test_faults.py` has every number up to 60."""


@pytest.mark.req("DUR-02", "DUR-03", "DUR-04", "ORD-01", "ORD-05", "CONN-10")
def test_calls_that_fail_under_load(tmp_path: Path) -> None:
    require_strace()
    tally = fail_calls(tmp_path / "data", CALLS, seed=2)
    assert tally.faults == {f"EIO from {call} {when}": 1 for call, when in CALLS}
    assert tally.drafts > len(CALLS) * 4
    assert tally.ends["server_error"] > 0
