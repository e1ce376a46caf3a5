"""A lake of few buckets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.jobs.snapshot.buckets import BUCKETS
from unisono.lake.lake import Lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake.at(str(tmp_path / "lake"))
    made.make(buckets=BUCKETS)
    return made
