"""A log that lakes are made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lake.cold.shapes import EVENTS
from tests.pipeline.history import make_store


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of which nothing has left; nobody writes to it."""
    data = tmp_path_factory.mktemp("whole") / "data"
    make_store(data, EVENTS)
    return data
