"""One server for all tests that need nothing special; each uses clients and partitions of its own.

Servers with other options are of one module, and started where a test asks for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.behaviour.server.harness import Peer, Server, running
from tests.behaviour.server.pressure import MESSAGE_BYTES_MAX

_names = count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Both profiles, model `open`, access allowed by default, default limits."""
    data: Path = tmp_path_factory.mktemp("shared") / "data"
    with running(data, "--model", "open", "--access-default", "allow") as started:
        yield started


@pytest.fixture
def part() -> str:
    """A partition no other test uses."""
    return f"part-{next(_names)}"


@pytest.fixture
def who() -> str:
    """A client_id no other test uses."""
    return f"client-{next(_names)}"


SMALL = (
    "--access-default", "allow", "--max-message-bytes", str(MESSAGE_BYTES_MAX),
    "--max-batch-size", "5", "--max-in-flight-drafts", "8", "--max-queued-syncs", "2",
    "--max-queue-events", "12", "--sync-limit-min", "2", "--sync-limit-max", "3", "--max-json-depth", "10",
    "--max-subscriptions", "3",
)  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Every limit small."""
    with running(tmp_path_factory.mktemp("small") / "data", *SMALL) as started:
        yield started


@pytest.fixture(scope="module")
def small_two_fronts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Every limit small, and fronts that ask the authority at each connect."""
    with running(tmp_path_factory.mktemp("small") / "data", *SMALL, "--fronts", "2") as started:
        yield started


@pytest.fixture(scope="module")
def small_pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Bounds of its own, sync subscribes, a versioned model, and pages of few bytes."""
    directory = tmp_path_factory.mktemp("small")
    model = directory / "model"
    (model / "schemas").mkdir(parents=True)
    (model / "model.toml").write_text('name = "notes"\nmodel_version = 12\n')
    (model / "schemas" / "note.json").write_text(json.dumps({"type": "string"}))
    options = [
        "--access-default", "allow", "--model", str(model), "--sync-subscribes",
        "--sync-limit-min", "2", "--sync-limit-max", "6", "--max-sync-page-bytes", "65536",
    ]  # fmt: skip
    with running(directory / "data", *options) as started:
        yield started


@pytest.fixture(scope="module")
def two_fronts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("fronts") / "data"
    with running(data, "--model", "open", "--access-default", "allow", "--fronts", "2") as started:
        yield started


@pytest.fixture(params=["one front", "two fronts"])
def either(request: pytest.FixtureRequest, server: Server, two_fronts: Server) -> Server:
    """A node with one front, and one with two on the same port."""
    return server if request.param == "one front" else two_fronts


@pytest.fixture
def peer(server: Server, who: str) -> Iterator[Peer]:
    """Compatibility profile."""
    with server.client(who) as connected:
        yield connected
