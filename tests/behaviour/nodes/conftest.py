"""Three nodes on one log for all tests of a module that need nothing special."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.behaviour.nodes.cluster import cluster
from tests.behaviour.server.harness import Server
from tests.store.postgres.server import database, postgres, shared_server

__all__ = ["database", "postgres"]

_names = count(1)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Nodes a, b and c: both profiles, model `open`, access allowed by default, default limits."""
    postgres = shared_server()
    dsn = postgres.create()
    with cluster(tmp_path_factory.mktemp("nodes"), dsn, "abc", "--model", "open") as started:
        yield started
    postgres.drop(dsn)


@pytest.fixture
def part() -> str:
    """A partition no other test uses."""
    return f"part-{next(_names)}"


@pytest.fixture
def who() -> str:
    """A client_id no other test uses."""
    return f"client-{next(_names)}"
