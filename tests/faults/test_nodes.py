"""Nodes on one database keep their promises together, whatever is killed, frozen or restarted under load.

`tests/behaviour/nodes/test_failover.py` has the failover.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.nodes import freeze_nodes, kill_nodes, restart_database
from tests.store.postgres.server import Postgres, database, postgres

__all__ = ["database", "postgres"]

KILLS = 10
"""Each part of a node twice. `soak/test_nodes.py` kills for longer."""

FREEZES = 2
RESTARTS = 4
"""Three in order or at once, and then a crash: see `restart_database`."""


@pytest.mark.req("DUR-02", "DUR-03", "ORD-01", "ORD-02", "ORD-05", "BCAST-01", "BCAST-03", "SYNC-06")
@pytest.mark.timeout(240)
def test_nodes_killed_under_load(tmp_path: Path, database: str) -> None:
    tally = kill_nodes(tmp_path, database, KILLS, seed=5)
    assert tally.drafts > KILLS * 6
    assert tally.recovered > 0, "no kill fell between a commit and its answer"


@pytest.mark.soak
@pytest.mark.req("DUR-02", "DUR-03", "DUR-04", "ORD-01", "ORD-05", "SYNC-06")
@pytest.mark.timeout(240)
def test_database_restarted_under_load(tmp_path: Path, postgres: Postgres, database: str) -> None:
    tally = restart_database(tmp_path, postgres, database, RESTARTS, seed=6)
    assert tally.drafts > RESTARTS * 6
    assert tally.ends["server_error"] > 0


@pytest.mark.soak
@pytest.mark.req("CONN-05", "DUR-02", "DUR-03", "DUR-04", "ORD-01", "ORD-02", "ORD-05")
def test_nodes_frozen_in_a_group_for_longer_than_they_may_hold_it(tmp_path: Path, database: str) -> None:
    tally = freeze_nodes(tmp_path, database, FREEZES, seed=7)
    assert tally.faults["node 1 expired"] == 1
    assert tally.drafts > FREEZES * 6
    assert tally.checked["H10"] > 0
