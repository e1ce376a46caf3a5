"""Kicks, revoked tokens and ACLs that change, across two nodes on one PostgreSQL."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.behaviour.nodes.cluster import cluster, query
from tests.behaviour.server.harness import set_event
from tests.behaviour.server.test_live_access import WITHIN_S, Guarded
from tests.store.postgres.server import Postgres


@pytest.mark.req("AUTHZ-09", "AUTH-11")
def test_access_changes_on_all_nodes(tmp_path: Path, database: str, postgres: Postgres) -> None:
    acl = tmp_path / "acl.json"
    acl.write_text(json.dumps({"clients": {"ann": {"partitions": ["p", "q"]}, "ben": {"partitions": ["p"]}}}))
    with cluster(tmp_path, database, "ab", "--model", "open", "--acl", str(acl)) as (one, other):
        here, there = Guarded(one, acl), Guarded(other, acl)
        with there.enter("ann", user_id="u", claims={"jti": "t1"}) as ann, here.enter("ben") as ben:
            ann.subscribe("p", "q")
            ben.commit(["p"], set_event("a", 1))
            ann.expect("event_broadcast")
            listed = [json.loads(line) for line in here.command("connections", "--json").splitlines()]
            assert {each["client_id"]: each["node"] for each in listed} == {"ann": "b", "ben": "a"}
            (far,) = (each for each in listed if each["node"] == "b")
            assert (far["user_id"], far["profile"]) == ("u", "compatibility")
            assert (far["partitions"], far["lag"], far["unsent_bytes"]) == (["p", "q"], 0, 0)
            here.write(ann={"partitions": ["q"]}, ben={"partitions": ["p"]})
            here.command("access", "reload")
            changed = time.monotonic()
            assert ann.expect_error("forbidden")["details"]["partitions"] == ["p"]
            assert time.monotonic() - changed < WITHIN_S
            ben.commit(["p"], set_event("a", 2))
            here.command("kick", "--user", "u", "--for", "10m")
            ann.expect_error("auth_failed")
            ann.expect_close(4001)
        for node in (here, there):
            with node.server.peer() as again:
                again.send_connect("ann", node.server.token("ann", user_id="u"))
                again.expect_error("auth_failed")
        there.command("kick", "--user", "u")
        here.command("access", "revoke", "t1")
        with here.server.peer() as again:
            again.send_connect("ann", one.token("ann", claims={"jti": "t1"}))
            again.expect_error("auth_failed")
        with there.enter("ben") as ben:  # a message between nodes that is lost: the table is read again
            query(database, "INSERT INTO unisono.revocations VALUES ('client', 'ben', 9999999999999)")
            ben.expect_error("auth_failed")
        there.server.stop()
        there.server.start()  # a node that starts later knows it, too
        with there.server.peer() as again:
            again.send_connect("ann", other.token("ann", claims={"jti": "t1"}))
            again.expect_error("auth_failed")
