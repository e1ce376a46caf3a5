"""A shared log whose past may have changed: connections are let go, and clients start over."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tests.behaviour.nodes.cluster import client_again, cluster, expect_let_go, query
from tests.behaviour.server.harness import set_event
from tests.client.running import WAIT_S, asynchronous, of, until
from tests.commands import unisono
from tests.store.postgres.server import Postgres


@pytest.mark.req("DUR-08")
def test_connections_learn_of_a_new_epoch(tmp_path: Path, database: str) -> None:
    with cluster(tmp_path, database) as nodes:
        peers = [server.peer() for server in nodes]
        told = [
            peer.connect(f"c{n}", server.token(f"c{n}"), supported_profiles=["compatibility"])
            for n, (peer, server) in enumerate(zip(peers, nodes, strict=True))
        ]
        assert told[0]["log_id"] == told[1]["log_id"]
        assert {each["log_epoch"] for each in told} == {1}
        peers[0].commit(["p"], set_event("a", 1))
        done = unisono("db", "new-epoch", "--store", database)
        assert done.exit_code == 0, done.output
        ((epoch,),) = query(database, "SELECT log_epoch FROM unisono.head")
        for number, (peer, server) in enumerate(zip(peers, nodes, strict=True)):
            expect_let_go(peer)
            with client_again(server, f"c{number}") as again:
                page = again.sync(["p"])
                assert (page["log_id"], page["log_epoch"]) == (told[0]["log_id"], epoch)
                assert len(page["events"]) == number + 1
                again.commit(["p"], set_event("b", number))


@pytest.mark.req("DUR-08")
@asynchronous
async def test_a_client_starts_over_after_a_restore(
    tmp_path: Path, postgres: Postgres, database: str
) -> None:
    """Backup and restore by `unisono copy`, into another database."""
    store, backup = tmp_path / "c.db", f"sqlite:{tmp_path / 'backup'}"
    with cluster(tmp_path / "first", database, "a") as (first,):
        async with of(first, "me", "p", store=store) as one:
            await one.set("a", 1)
            await one.caught_up(WAIT_S)
            assert unisono("copy", "--from", database, "--to", backup, "--quiet").exit_code == 0
            for number in range(3):
                await one.set(f"lost{number}", number)
            await one.caught_up(WAIT_S)
            await until(lambda: one.status.cursor == 4)
    other = postgres.create()
    try:
        with psycopg.connect(other, autocommit=True) as connection:  # made from a template here
            connection.execute("UPDATE unisono.head SET log_id = gen_random_uuid()")
        done = unisono("copy", "--from", backup, "--to", other, "--restore", "--quiet")
        assert done.exit_code == 0, done.output
        with cluster(tmp_path / "second", other, "a") as (second,):
            with second.client("writer") as writer:
                for number in range(5):
                    writer.commit(["p"], set_event(f"new{number}", number))
            async with of(second, "me", "p", store=store) as one, of(second, "fresh", "p") as fresh:
                await one.caught_up(WAIT_S)
                await fresh.caught_up(WAIT_S)
                assert one.view() == fresh.view()
                assert one.view() == {"a": 1} | {f"new{number}": number for number in range(5)}
                assert one.status.last_error is not None
                assert one.status.last_error.code == "log_changed"
    finally:
        postgres.drop(other)
