"""The built JavaScript client, and a server for its tests."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.js.node import CLIENTS, build, run
from tests.js.server_control import ControlledServer, controlled


@pytest.fixture(scope="session")
def built() -> Path:
    """`clients/js` with its packages compiled."""
    build()
    return CLIENTS


@pytest.fixture(scope="session")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlledServer, str]]:
    data = tmp_path_factory.mktemp("js") / "data"
    with controlled(data, "--model", "open", "--access-default", "allow") as started:
        yield started


@pytest.fixture
def node_tests(
    built: Path, control: tuple[ControlledServer, str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run files with Node's test runner against the server."""

    def execute(*files: str) -> subprocess.CompletedProcess[str]:
        paths = [str(built / file) for file in files]
        return run("--test", "--test-concurrency=1", *paths, UNISONO_CONTROL=control[1])

    return execute
