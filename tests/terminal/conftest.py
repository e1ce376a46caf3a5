"""One server with the sample model for all tests; each uses clients and partitions of its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.behaviour.server.harness import Server, running
from unisono.samples import sample_model

_names = count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data: Path = tmp_path_factory.mktemp("terminal-tests") / "data"
    with running(data, "--model", str(sample_model()), "--access-default", "allow") as started:
        yield started


@pytest.fixture
def part() -> str:
    """A partition no other test uses."""
    return f"terminal-part-{next(_names)}"
