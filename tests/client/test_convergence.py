"""Convergence: random edits, bad lines, dead clients; 8 seeds here, 200 in the soak."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.behaviour.server.harness import Server
from tests.client.convergence import run


@pytest.mark.req("CLIENT-03", "CLIENT-04", "CLIENT-08", "CLIENT-13")
@pytest.mark.parametrize("seed", range(8))
def test_all_see_the_same(seed: int, server: Server, tmp_path: Path) -> None:
    outcome = asyncio.run(asyncio.wait_for(run(seed, server, tmp_path), 200))
    assert outcome.events > 0
