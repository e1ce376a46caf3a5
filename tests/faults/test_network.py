"""Lines that delay, split, trickle, swallow and cut: everybody has everything in the end, each event once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.network import MISHAPS, bad_lines, clients_over_bad_lines

COUNT = 2 * len(MISHAPS)
"""`soak/test_faults.py` has more of them."""


@pytest.mark.req("DUR-03", "ORD-01", "ORD-03", "ORD-05", "SYNC-01", "SYNC-06", "BCAST-03")
def test_a_line_with_mishaps(tmp_path: Path) -> None:
    tally = bad_lines(tmp_path / "data", COUNT, seed=4)
    assert tally.faults == dict.fromkeys(MISHAPS, 2)
    assert tally.ends.total() > 2, "hardly anybody noticed"
    assert tally.drafts > COUNT


@pytest.mark.req("CLIENT-03", "CLIENT-04", "CLIENT-08", "CLIENT-13", "DUR-03", "ORD-03")
def test_clients_of_the_library_over_lines_with_mishaps(tmp_path: Path) -> None:
    """`tests/client/test_convergence.py` has more runs; here every frame of every client is in the history."""
    outcome = clients_over_bad_lines(tmp_path, 1, seed=500)
    assert outcome.events > 0
    assert outcome.cuts + outcome.kills > 0
    for invariant in ("H1", "H2", "H3", "H4", "H5", "H6", "H7", "H9", "H10", "H12"):
        assert outcome.checked[invariant] > 0, invariant
