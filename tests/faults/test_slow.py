"""Whoever does not read is let go, and costs neither memory nor the others anything (BCAST-04, LIM-05)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.slow import broadcast

TOTAL_BYTES = 20_000_000
HEALTHY = 20
HELD_BYTES_MAX = 8 << 20
"""`soak/test_faults.py` broadcasts ten times as much to five times as many, and compares with a run without it."""


@pytest.mark.req("BCAST-01", "BCAST-03", "BCAST-04", "LIM-05")
def test_one_subscriber_stops_reading(tmp_path: Path) -> None:
    outcome = broadcast(tmp_path / "data", total_bytes=TOTAL_BYTES, healthy=HEALTHY, stopped=True)
    assert outcome.broadcasts >= TOTAL_BYTES // 17_000
    assert outcome.closed_after_s is not None
    assert outcome.held_bytes <= HELD_BYTES_MAX, outcome
