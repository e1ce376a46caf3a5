"""Several nodes on one database, for long: takeovers across them, kills, freezes, restarts and failovers.

SOAK_ROUNDS shortens or lengthens each of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.behaviour.nodes.cluster import SERVER_ERROR, client_again, cluster, records_of
from tests.behaviour.nodes.proxy import proxied
from tests.behaviour.server.harness import Server, item, tree_event
from tests.faults.nodes import fail_over, freeze_nodes, kill_nodes, restart_database
from tests.store.postgres.server import Postgres, database, postgres
from tests.waiting import until

from soak.test_takeovers import REPLACED, THREADS, Device

__all__ = ["database", "postgres"]

ROUNDS = os.environ.get("SOAK_ROUNDS")
TAKEOVERS = int(ROUNDS or 1000)
KILLS = int(ROUNDS or 300)
RESTARTS = int(ROUNDS or 100)
FREEZES = int(ROUNDS or 40)
FAILOVERS = int(ROUNDS or 20)


class Traveller(Device):
    """The client on one of its devices, which comes to another node each time."""

    def __init__(self, nodes: Sequence[Server], number: int) -> None:
        super().__init__(nodes[number % len(nodes)], number)
        self._nodes = nodes
        self._at = number

    def travel(self, times: int) -> None:
        while times > 0:
            self._at += 1
            self._server = self._nodes[self._at % len(self._nodes)]
            stay = min(times, 1 + self._at % 3)
            self.take_over(stay)
            times -= stay


@pytest.mark.req("CONN-05", "ORD-03", "ORD-05")
@pytest.mark.timeout(60 + TAKEOVERS)
def test_takeovers_across_nodes_leave_one_connection_and_lose_nothing(tmp_path: Path, database: str) -> None:
    with cluster(tmp_path, database, "ab", "--log-level", "warning") as nodes:
        devices = [Traveller(nodes, number) for number in range(THREADS)]
        with ThreadPoolExecutor(THREADS) as pool:
            for future in [pool.submit(device.travel, TAKEOVERS // THREADS) for device in devices]:
                future.result()
        assert sum(device.alive() for device in devices) == 1
        until(
            lambda: sum(server.metric("unisono_connections") for server in nodes) == 1,
            "a replaced connection is still held",
        )
        for server in nodes:
            assert server.metric("unisono_closes_total", code=str(REPLACED)) > 0
        for device in devices:
            device.finish()
        assert [server.stop() for server in nodes] == [0, 0]
    told = {id: committed_id for device in devices for id, committed_id in device.told.items()}
    assert {record.id: record.committed_id for record in records_of(database)} == told


@pytest.mark.req("DUR-02", "DUR-03", "ORD-01", "ORD-02", "ORD-05", "SYNC-06")
@pytest.mark.timeout(120 + 20 * KILLS)
def test_nodes_killed_however_often(tmp_path: Path, database: str) -> None:
    tally = kill_nodes(tmp_path, database, KILLS, seed=KILLS)
    assert tally.drafts > KILLS * 6
    assert tally.recovered > 0


@pytest.mark.req("DUR-02", "DUR-03", "DUR-04", "ORD-01", "ORD-05", "SYNC-06")
@pytest.mark.timeout(120 + 30 * RESTARTS)
def test_database_restarted_however_often(tmp_path: Path, postgres: Postgres, database: str) -> None:
    tally = restart_database(tmp_path, postgres, database, RESTARTS, seed=RESTARTS)
    assert tally.drafts > RESTARTS * 6
    assert tally.ends["server_error"] > 0


@pytest.mark.req("CONN-05", "DUR-02", "DUR-03", "DUR-04", "ORD-01", "ORD-02", "ORD-05")
@pytest.mark.timeout(120 + 30 * FREEZES)
def test_nodes_frozen_however_often(tmp_path: Path, database: str) -> None:
    tally = freeze_nodes(tmp_path, database, FREEZES, seed=FREEZES)
    assert tally.drafts > FREEZES * 6
    assert tally.ends["server_error"] > 0


@pytest.mark.req("DUR-02", "DUR-03", "DUR-04", "ORD-01", "ORD-05", "SYNC-06")
@pytest.mark.timeout(120 + 60 * FAILOVERS)
def test_one_failover_after_the_other(tmp_path: Path) -> None:
    tally = fail_over(tmp_path, FAILOVERS, seed=FAILOVERS)
    assert tally.drafts > FAILOVERS * 6
    assert tally.ends["server_error"] > 0


@pytest.mark.req("DUR-04")
@pytest.mark.timeout(180)
def test_a_network_that_swallows_everything(tmp_path: Path, postgres: Postgres, database: str) -> None:
    """Nobody is told that the connection is gone: the node gives up after a while, and the others never notice."""
    patient = ("--heartbeat-timeout-s", "300")
    with (
        proxied(postgres.port) as proxy,
        cluster(tmp_path, postgres.dsn(database.rsplit("/", 1)[1], port=proxy.port), "a", *patient) as (a,),
        cluster(tmp_path, database, "b", *patient) as (b,),
        a.client("x") as cut_off,
        b.client("y") as other,
    ):
        assert cut_off.commit(["p"], tree_event("A")) == 1
        proxy.silent.set()
        draft = item(["p"], tree_event("B"))
        cut_off.send("submit_events", {"events": [draft]})
        for number in range(2, 12):
            assert other.commit(["p"], tree_event(f"n{number}")) == number
        assert cut_off.expect("error", 60)["code"] == "server_error"
        cut_off.expect_close(SERVER_ERROR)
        proxy.silent.clear()
        with client_again(a, "x") as again:
            assert again.submit(draft)[0]["committed_id"] == 12
            assert len(again.history(["p"])) == 12
