"""Convergence over 200 seeds: five clients, random edits, bad lines, clients killed with -9.

python -m pytest soak/test_convergence.py            all of them
python -m pytest soak/test_convergence.py -k '[17]'  one again
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.behaviour.server.harness import Server, running
from tests.client.convergence import run
from tests.history.recorder import Recorder

SEEDS = range(1000, 1200)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data: Path = tmp_path_factory.mktemp("soak") / "data"
    with running(data, "--model", "open", "--access-default", "allow") as started:
        started.recorder = Recorder(complete=True, bytes_max=2 << 30)
        yield started


@pytest.mark.parametrize("seed", SEEDS)
def test_all_see_the_same(seed: int, server: Server, tmp_path: Path) -> None:
    outcome = asyncio.run(asyncio.wait_for(run(seed, server, tmp_path, seconds=2.0), 110))
    assert outcome.events > 0
