"""The pipeline beside a server under load, for long: both killed again and again, the log no larger at the end.

SOAK_ROUNDS shortens or lengthens it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.pipeline.beside import run_beside

LIVES = max(1, int(os.environ.get("SOAK_ROUNDS", "300")) // 50)


@pytest.mark.req("DUR-05", "DUR-06")
@pytest.mark.timeout(120 + 300 * LIVES)
def test_nothing_is_lost_and_the_log_stays_small(tmp_path: Path) -> None:
    outcome = run_beside(
        tmp_path, lives=LIVES, services=5, writers=4, keep=2_000, load_s=(6.0, 20.0), seed=LIVES
    )
    assert outcome.service_kills == 5 * LIVES
    remembered = 250 * outcome.extent.pruned_to  # what deduplication keeps of each event, with its index
    assert outcome.log_bytes[-1] < (32 << 20) + remembered, f"{outcome.extent}: {outcome.log_bytes}"
