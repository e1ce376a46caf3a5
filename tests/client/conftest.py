"""One server for all tests that need nothing special; each uses clients and partitions of its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.behaviour.server.harness import Server, running

_names = count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Both profiles, model `open`, access allowed by default, default limits."""
    data: Path = tmp_path_factory.mktemp("client-tests") / "data"
    with running(data, "--model", "open", "--access-default", "allow") as started:
        yield started


@pytest.fixture
def part() -> str:
    """A partition no other test uses."""
    return f"client-part-{next(_names)}"


@pytest.fixture
def who() -> str:
    """A client_id no other test uses."""
    return f"who-{next(_names)}"
