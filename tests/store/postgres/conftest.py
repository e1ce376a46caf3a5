"""Nodes of a cluster on a database of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tests.store.postgres.nodes import OpenNode
from tests.store.postgres.server import database, postgres
from unisono.store.postgres.log import PostgresLog

__all__ = ["database", "postgres"]


@pytest.fixture
def node(database: str) -> Iterator[OpenNode]:
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(closing(PostgresLog.open(database, name)))
