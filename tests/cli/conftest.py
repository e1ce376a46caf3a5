"""One server for the commands of a module."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.behaviour.server.harness import Server, new_id, running
from unisono.samples import sample_model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The sample model in a copy of its own, access allowed, logs in JSON."""
    place = tmp_path_factory.mktemp("commands")
    model = shutil.copytree(sample_model(), place / "model")
    with running(
        place / "data",
        "--model", str(model),
        "--access-default", "allow",
        "--log-format", "json",
    ) as started:  # fmt: skip
        yield started


@pytest.fixture
def part() -> str:
    return new_id("part")
