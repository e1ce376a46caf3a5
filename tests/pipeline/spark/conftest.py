"""What the tests of the sink share: a server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.behaviour.server.harness import Server, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Deny is the default: the sink's own tokens must say what they may touch."""
    with running(
        tmp_path_factory.mktemp("sink") / "data", "--model", "open", "--access-default", "deny"
    ) as started:
        yield started
