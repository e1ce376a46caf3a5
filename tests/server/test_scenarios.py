"""The situations a sync server must get right, end to end."""

from __future__ import annotations

import pytest

from tests.server.harness import Server, tree_event


@pytest.mark.req("CONN-04", "CONN-09", "LIM-01")
def test_empty_handshake(server: Server, who: str) -> None:
    with server.peer() as peer:
        connected = peer.connect(who, server.token(who))
        assert connected["client_id"] == who
        assert connected["capabilities"]["profile"] == "canonical"
        assert connected["limits"]["max_batch_size"] == 100
        page = peer.sync(["nothing-here"])
        assert page["events"] == []
        assert page["effective_subscriptions"] == []


@pytest.mark.req("BCAST-01", "BCAST-02", "BCAST-05")
def test_commit_and_broadcast(server: Server, part: str) -> None:
    with server.client(f"{part}-a") as origin, server.client(f"{part}-b") as other:
        origin.subscribe(part)
        other.subscribe(part)
        committed_id = origin.commit([part], tree_event("A"), id=f"{part}-1")
        told = other.expect("event_broadcast")
        assert told["committed_id"] == committed_id
        assert told["client_id"] == f"{part}-a"
        assert told["event"] == tree_event("A")
        origin.expect_quiet()
