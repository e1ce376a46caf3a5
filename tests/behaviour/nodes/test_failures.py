"""The database, the network or a node fails: nothing is acknowledged without proof, and all of it passes.

Whoever was connected hears `server_error` and is closed with 1011; whoever comes back finds what was acknowledged,
and whatever was not answered is found by its retry or commits then.
"""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Literal

import psycopg
import pytest

from tests.behaviour.nodes.cluster import (
    SERVE,
    client_again,
    cluster,
    expect_let_go,
    expect_serving,
    ids,
    node,
    query,
    records_of,
)
from tests.behaviour.nodes.proxy import proxied
from tests.behaviour.server.harness import Peer, Server, item, running, tree_event
from tests.behaviour.server.killing import Gone, until_gone
from tests.behaviour.server.reloading import post
from tests.store.postgres.server import Postgres
from tests.waiting import PATIENCE_S, until
from unisono.ipc.files import ADMIN_FILE

# The database


@pytest.mark.req("DUR-02", "DUR-04", "CONN-10", "ERR-01")
def test_the_database_goes_away_and_comes_back(tmp_path: Path, postgres: Postgres, database: str) -> None:
    with cluster(tmp_path, database, "ab", "--fronts", "2") as (a, b):
        busy, idle, other = a.client("busy"), a.client("idle"), b.client("other")
        idle.subscribe("p")
        first = busy.commit(["p"], tree_event("A"))
        assert idle.expect("event_broadcast")["committed_id"] == first
        waiting = a.peer()  # has not connected yet
        draft = item(["p"], tree_event("B"))
        postgres.stop()
        try:
            with suppress(Gone), until_gone():
                busy.send("submit_events", {"events": [draft]})
            for peer in (busy, idle, other, waiting):
                expect_let_go(peer)
            with a.peer() as turned_away:
                expect_let_go(turned_away)
            expect_not_ready(a)
            assert post(a, "/orders/reload", **admin(a))[0] == 409, "an order is refused, it does not wait"
            assert b.stop() == 0, "a node can be stopped while its log is out of reach"
            late = node(tmp_path, database, "late")
            with pytest.raises(AssertionError, match="cannot be opened"):
                late.start()
            assert late.process.returncode == 2
        finally:
            postgres.start()
        with client_again(a, "busy") as busy, b.start().client("other") as other:
            expect_serving(a)
            page = other.subscribe("p")
            assert [event["committed_id"] for event in page["events"]] == [first]
            (result,) = busy.submit(draft)
            assert result["committed_id"] == first + 1
            assert ids([other.expect("event_broadcast")]) == [draft["id"]]


def expect_not_ready(server: Server) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.get("/readyz")
    with refused.value:
        assert refused.value.code == 503
        assert b"the log" in refused.value.read()


def admin(server: Server) -> dict[str, str]:
    token = json.loads((server.data / ADMIN_FILE).read_text())["token"]
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.req("DUR-04", "BCAST-01", "SYNC-06")
def test_any_one_connection_to_the_database_is_cut(tmp_path: Path, database: str) -> None:
    """The authority's, the reader's or the one that listens; the node finds each of them again."""
    with cluster(tmp_path, database, "a") as (a,):
        until(lambda: len(backends(database)) == 3, "a node has three connections")
        own = backends(database)
        with running(tmp_path / "b", "--store", database, "--node-name", "b", *SERVE) as b:
            writer = b.client("writer")
            number = 0
            for pid in own:
                listener = client_again(a, "listener")
                listener.subscribe("p")
                query(database, f"SELECT pg_terminate_backend({pid}, 5000)")
                number += 1
                told = writer.commit(["p"], tree_event(f"n{number}"))
                try:
                    assert listener.expect("event_broadcast")["committed_id"] == told
                except AssertionError:  # it was let go: the cut one was the authority's
                    listener = client_again(a, "listener")
                page = listener.sync(["p"])
                assert len(page["events"]) == number
                number += 1
                listener.commit(["p"], tree_event(f"n{number}"))
                listener.close()
            until(lambda: len(backends(database)) == 6, "a connection is not made again")


def backends(dsn: str) -> list[int]:
    """The processes that serve the nodes of a database, oldest first."""
    rows = query(
        dsn,
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND application_name = 'unisono' ORDER BY backend_start",
    )
    return [pid for (pid,) in rows]


@pytest.mark.req("CONN-05", "DUR-04")
def test_what_was_said_just_before_is_not_forgotten(tmp_path: Path, database: str) -> None:
    """A client that left is not held to be there, and an order is answered."""
    with (
        cluster(tmp_path, database, "a") as (a,),
        ThreadPoolExecutor(2) as pool,
        psycopg.connect(database) as in_the_way,
    ):
        leaver, other, again = a.client("leaver"), a.client("other"), a.peer()
        own = backends(database)
        authority = next(iter(a.children()))
        os.kill(authority, signal.SIGSTOP)
        try:
            leaver.close()
            token = a.token("other")
            again.send(
                "connect", {"client_id": "other", "token": token, "supported_profiles": ["compatibility"]}
            )
            ordered = pool.submit(post, a, "/orders/reload", **admin(a))
            for _ in range(2):  # until the front has handed on all of it
                other.send("heartbeat", {})
                other.expect("heartbeat_ack")
            time.sleep(0.2)
            in_the_way.execute("SELECT 1 FROM unisono.presence WHERE client_id = 'other' FOR UPDATE")
        finally:
            os.kill(authority, signal.SIGCONT)
        other.expect_quiet()
        assert not ordered.done(), "all that waits for the claim of `other`"
        for pid in own:
            query(database, f"SELECT pg_terminate_backend({pid}, 5000)")
        in_the_way.rollback()
        for peer in (other, again):
            expect_let_go(peer)
        assert ordered.result(timeout=PATIENCE_S)[0] == 409
        until(
            lambda: query(database, "SELECT count(*) FROM unisono.presence") == [(0,)],
            "somebody is held to be connected who is not",
        )


# The network


@pytest.mark.req("DUR-03", "DUR-04", "ORD-03", "ORD-05")
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_network_is_cut_at_a_commit(
    tmp_path: Path, postgres: Postgres, database: str, when: Literal["before", "after"]
) -> None:
    """Whether it became durable or not, nobody is told that it did; the retry, on any node, finds out."""
    name = database.rsplit("/", 1)[1]
    with (
        proxied(postgres.port) as proxy,
        cluster(tmp_path, postgres.dsn(name, port=proxy.port), "a") as (a,),
        running(tmp_path / "b", "--store", database, "--node-name", "b", *SERVE) as b,
    ):
        other, peer, neighbour = b.client("other"), a.client("x"), a.client("y")
        other.subscribe("p")
        neighbour.subscribe("p")
        assert peer.commit(["p"], tree_event("A")) == 1
        told = other.expect("event_broadcast")
        assert neighbour.expect("event_broadcast") == told
        draft = item(["p"], tree_event("B"))
        proxy.at_commit = when
        peer.send("submit_events", {"events": [draft]})
        for left in (peer, neighbour):
            expect_let_go(left)
        proxy.at_commit = None
        if when == "after":
            told = other.expect("event_broadcast")
            assert (told["id"], told["committed_id"]) == (draft["id"], 2)
        else:
            other.expect_quiet()
        with b.client("x") if when == "after" else client_again(a, "x") as again:
            (result,) = again.submit(draft)
            assert (result["status"], result["committed_id"]) == ("committed", 2)
            if when == "after":
                assert result["status_updated_at"] == told["status_updated_at"]
        with client_again(a, "y") as neighbour:
            assert ids(neighbour.subscribe("p")["events"])[1:] == [draft["id"]]
            third = other_commit(other, when)
            assert neighbour.expect("event_broadcast")["committed_id"] == third == 3
    assert len(records_of(database)) == 3


def other_commit(other: Peer, when: str) -> int:
    if when == "before":
        other.expect("event_broadcast")  # the retry
    return other.commit(["p"], tree_event("C"))


@pytest.mark.req("DUR-04")
def test_the_network_fails_again_and_again(tmp_path: Path, postgres: Postgres, database: str) -> None:
    name = database.rsplit("/", 1)[1]
    with (
        proxied(postgres.port) as proxy,
        cluster(tmp_path, postgres.dsn(name, port=proxy.port), "a") as (a,),
    ):
        for turn in range(6):
            with client_again(a, "x") as peer:
                assert peer.commit(["p"], tree_event(f"n{turn}")) == turn + 1
                proxy.cut()
                expect_let_go(peer)
        with client_again(a, "x") as peer:
            assert len(peer.history(["p"])) == 6


BRIEFLY = (
    ("--store-connect-timeout-s", "2"),
    ("--store-group-timeout-s", "2", "--rule-timeout-s", "0.5"),
    ("--store-lock-timeout-s", "2.2"),
    ("--store-statement-timeout-s", "2.4"),
    ("--store-answer-timeout-s", "2.6"),
)


@pytest.mark.req("DUR-04")
def test_a_silent_network_is_not_waited_for_longer_than_set(
    tmp_path: Path, postgres: Postgres, database: str
) -> None:
    """Everything is taken and nothing passed on: no keepalive notices, only the clock of the answer does."""
    name = database.rsplit("/", 1)[1]
    options = [word for pair in BRIEFLY for word in pair]
    with (
        proxied(postgres.port) as proxy,
        cluster(tmp_path, postgres.dsn(name, port=proxy.port), "a", *options) as (a,),
    ):
        with a.client("x") as peer:
            assert peer.commit(["p"], tree_event("A")) == 1
            proxy.silent.set()
            peer.send("submit_events", {"events": [item(["p"], tree_event("B"))]})
            expect_let_go(peer)
        proxy.silent.clear()
        with client_again(a, "x") as peer:
            assert peer.commit(["p"], tree_event("C")) == 2
