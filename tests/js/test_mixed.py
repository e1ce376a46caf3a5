"""Convergence of Python and JavaScript clients on one server: 10 seeds here, 100 in the soak."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.js.mixed import MixedOutcome, run
from tests.js.server_control import controlled

SERVER = ("--model", "open", "--access-default", "allow")


def outcomes(seeds: range, place: Path) -> list[MixedOutcome]:
    """Run seeds against one server; its whole history is checked in the end."""
    made = []
    with controlled(place / "data", *SERVER) as (owner, _):
        for seed in seeds:
            job = run(seed, owner, place, kill_server=seed % 5 == 4)
            made.append(asyncio.run(asyncio.wait_for(job, 200)))
        owner.server.kill()
        owner.server.recorder.check(owner.server.data)
    return made


@pytest.mark.req("CLIENT-03", "CLIENT-04", "CLIENT-08", "CLIENT-13", "TREE-11")
def test_python_and_javascript_see_the_same(built: Path, tmp_path: Path) -> None:
    made = outcomes(range(5), tmp_path)
    assert all(each.events > 0 and each.kills == 1 for each in made), made


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_hundred_mixed_runs(built: Path, tmp_path: Path) -> None:
    made = outcomes(range(1000, 1100), tmp_path)
    assert sum(each.events for each in made) > 3_000, made
