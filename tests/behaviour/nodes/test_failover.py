"""The primary is lost and a standby is promoted: nodes follow it, or stop when it is not the same log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.behaviour.nodes.cluster import client_again, cluster, expect_let_go, expect_serving, node
from tests.behaviour.nodes.proxy import proxied
from tests.behaviour.server.harness import tree_event
from tests.behaviour.server.killing import expect_nothing_left
from tests.faults.workload import load
from tests.store.postgres.server import Postgres
from tests.waiting import PATIENCE_S


@contextmanager
def standby_of(postgres: Postgres) -> Iterator[Postgres]:
    """A standby that confirms every commit; the primary is as before afterwards."""
    standby = postgres.standby()
    try:
        postgres.execute("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        yield standby
    finally:
        standby.dispose()
        with suppress(RuntimeError):
            postgres.start()
        postgres.execute("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")


@pytest.mark.req("DUR-02", "DUR-03", "DUR-04", "ORD-01", "ORD-05", "SYNC-06")
@pytest.mark.parametrize("found_by", ["two hosts", "an address that moves"])
def test_nodes_follow_a_promoted_standby(
    tmp_path: Path, postgres: Postgres, database: str, found_by: str
) -> None:
    """Under load: nothing acknowledged is lost, and every client comes back by itself."""
    name = database.rsplit("/", 1)[1]
    with standby_of(postgres) as standby, proxied(postgres.port) as proxy:
        hosts = f"127.0.0.1:{postgres.port},127.0.0.1:{standby.port}"
        both = f"postgresql://postgres@{hosts}/{name}?target_session_attrs=read-write"
        dsn = both if found_by == "two hosts" else postgres.dsn(name, port=proxy.port)
        with cluster(tmp_path, dsn, "ab", "--log-level", "warning") as nodes, load(nodes) as work:
            for _ in range(5):
                work.expect_progress()
            postgres.stop("immediate")
            standby.promote()
            proxy.target = standby.port
            for _ in range(5):
                work.expect_progress()
            for server in nodes:
                expect_serving(server)
            tally = work.settle(standby.dsn(name), nodes, same_past=True)
    assert tally.drafts > 0
    assert tally.ends["server_error"] > 0


@pytest.mark.req("ORD-01", "DUR-04", "DUR-08")
def test_a_standby_that_lacks_what_was_acknowledged_is_not_followed(
    tmp_path: Path, postgres: Postgres, database: str
) -> None:
    """Without synchronous replication a failover can lose events. A node that has told them does not go on."""
    name = database.rsplit("/", 1)[1]
    standby = postgres.standby()
    try:
        with proxied(postgres.port) as proxy:
            dsn = postgres.dsn(name, port=proxy.port)
            with cluster(tmp_path, dsn, "a") as (a,):
                a.tampered = True
                peer = a.client("x")
                peer.commit(["p"], tree_event("A"))
                standby.stop()
                peer.commit(["p"], tree_event("B"))
                postgres.stop("immediate")
                expect_let_go(peer)
                standby.start()
                standby.promote()
                proxy.target = standby.port
                assert a.process.wait(timeout=PATIENCE_S) == 1
                expect_nothing_left(a)
                assert "committed events are missing" in a.log.read_text()
                # Started anew it serves what is there.
                again = node(tmp_path / "again", dsn, "a").start()
                try:
                    with client_again(again, "x") as peer:
                        page = peer.sync(["p"])
                        assert page["log_epoch"] > 1, "clients that saw what is gone start over"
                        events = page["events"]
                        assert [event["committed_id"] for event in events] in ([], [1])
                        assert peer.commit(["p"], tree_event("C")) == len(events) + 1
                finally:
                    again.kill()
    finally:
        standby.dispose()
        with suppress(RuntimeError):
            postgres.start()
