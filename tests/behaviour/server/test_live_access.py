"""Access that changes while clients are connected: the ACL, kicks, revoked tokens."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.server.harness import Peer, Server, item, running, set_event
from tests.behaviour.server.pressure import stopped
from tests.behaviour.server.test_presence import here, say, seen
from tests.commands import unisono
from unisono.store.check import check_directory

WITHIN_S = 1.0
"""How soon a connected client is told."""


class Guarded:
    """A server with an ACL that tests write to."""

    def __init__(self, server: Server, acl: Path) -> None:
        self.server = server
        self.acl = acl

    def write(self, **clients: dict[str, list[str]]) -> None:
        self.acl.write_text(json.dumps({"clients": clients}))

    def command(self, *arguments: str) -> str:
        done = unisono(*arguments, "--data", str(self.server.data))
        assert done.exit_code == 0, done.output
        return done.output

    def enter(self, client_id: str, **claims: Any) -> Peer:
        peer = self.server.peer()
        token = self.server.token(client_id, **claims)
        peer.connect(client_id, token, supported_profiles=["compatibility"])
        return peer


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded")
    acl = directory / "acl.json"
    acl.write_text("{}")
    with running(directory / "data", "--model", "open", "--acl", str(acl), "--fronts", "2") as started:
        yield Guarded(started, acl)


@pytest.mark.req("AUTHZ-09")
@pytest.mark.parametrize("by", ["command", "signal"])
def test_what_is_no_longer_allowed_ends_at_once(guarded: Guarded, part: str, by: str) -> None:
    kept, lost = f"{part}-kept", f"{part}-lost"
    a, b = f"{part}-a", f"{part}-b"
    guarded.write(**{a: {"partitions": [kept, lost]}, b: {"partitions": [kept, lost]}})
    guarded.command("access", "reload")
    with guarded.enter(a) as ann, guarded.enter(b) as ben:
        allowed(ann, lost)
        allowed(ben, lost)
        ann.subscribe(kept, lost)
        ben.subscribe(kept, lost)
        ben.commit([lost], set_event("a", 1))
        ann.expect("event_broadcast")
        guarded.write(**{a: {"partitions": [kept]}, b: {"partitions": [kept, lost]}})
        if by == "command":
            assert guarded.command("access", "reload") == "ACL reloaded\n"
        else:
            guarded.server.process.send_signal(signal.SIGHUP)
        changed = time.monotonic()
        error = ann.expect_error("forbidden")
        assert by == "signal" or time.monotonic() - changed < WITHIN_S
        assert error["details"] == {"partitions": [lost], "revoked": True}
        ben.commit([lost], set_event("a", 2))
        committed_id = ben.commit([kept], set_event("a", 3))
        assert ann.expect("event_broadcast")["committed_id"] == committed_id  # nothing of the other
        (refused,) = ann.submit(item([lost], set_event("a", 4)))
        assert refused["reason"] == "forbidden"
        assert ann.sync([kept])["effective_subscriptions"] == [kept]
        ann.send("sync", {"partitions": [lost], "since_committed_id": 0})
        ann.expect_error("forbidden")
        # And back.
        guarded.write(**{a: {"partitions": [kept, lost]}, b: {"partitions": [kept, lost]}})
        guarded.command("access", "reload")
        assert len(allowed(ann, lost)["events"]) == 2


def allowed(peer: Peer, partition: str) -> dict[str, Any]:
    """A page of a partition that is allowed."""
    peer.send("sync", {"partitions": [partition], "since_committed_id": 0})
    message = peer.receive()
    assert message["type"] == "sync_response", message
    page: dict[str, Any] = message["payload"]
    return page


@pytest.mark.req("AUTHZ-09")
def test_a_reload_is_answered_when_every_front_has_applied_it(guarded: Guarded, part: str) -> None:
    a = f"{part}-a"
    guarded.write(**{a: {"partitions": [part]}})
    guarded.command("access", "reload")
    with guarded.enter(a) as ann:
        ann.subscribe(part)
        guarded.write(**{a: {}})
        _, _, *fronts = guarded.server.children()
        idle = 1 if guarded.server.metric("unisono_connections", process="front 0") else 0
        command = [sys.executable, "-m", "unisono", "access", "reload", "--data", str(guarded.server.data)]
        with stopped(fronts[idle]):
            reload = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            ann.expect_error("forbidden")  # her front has applied it
            assert reload.poll() is None
        assert reload.communicate(timeout=WITHIN_S * 30)[0] == "ACL reloaded\n"


@pytest.mark.req("AUTHZ-09", "AUTHZ-08")
def test_a_writer_can_become_a_reader(guarded: Guarded, part: str) -> None:
    a = f"{part}-a"
    guarded.write(**{a: {"partitions": [part]}})
    guarded.command("access", "reload")
    with guarded.enter(a) as ann:
        allowed(ann, part)
        ann.subscribe(part)
        ann.commit([part], set_event("a", 1))
        guarded.write(**{a: {"readable_partitions": [part]}})
        guarded.command("access", "reload")
        (result,) = ann.submit(item([part], set_event("a", 2)))
        assert result["reason"] == "forbidden"
        assert ann.sync([part])["effective_subscriptions"] == [part]  # it still reads


@pytest.mark.req("AUTHZ-09")
def test_presence_ends_with_access(guarded: Guarded, part: str) -> None:
    a, b = f"{part}-a", f"{part}-b"
    guarded.write(**{a: {"partitions": [part]}, b: {"partitions": [part]}})
    guarded.command("access", "reload")
    with here(guarded.server, a) as ann, here(guarded.server, b) as ben:
        allowed(ann, part)
        allowed(ben, part)
        ben.subscribe(part)
        say(ann, part, 1)
        state: dict[str, Any] = {}
        seen(ben, state, lambda now: now == {a: 1})
        guarded.write(**{b: {"partitions": [part]}})
        guarded.command("access", "reload")
        seen(ben, state, lambda now: now == {})


@pytest.mark.req("AUTHZ-09")
def test_an_acl_that_cannot_be_read_changes_nothing(guarded: Guarded, part: str) -> None:
    a = f"{part}-a"
    guarded.write(**{a: {"partitions": [part]}})
    guarded.command("access", "reload")
    with guarded.enter(a) as ann:
        allowed(ann, part)
        ann.subscribe(part)
        guarded.acl.write_text("{")
        failed = unisono("access", "reload", "--data", str(guarded.server.data))
        assert failed.exit_code == 1
        assert "acl.json" in failed.output
        ann.commit([part], set_event("a", 1))
    guarded.write()


@pytest.mark.req("AUTH-11")
@pytest.mark.parametrize("by", ["--client", "--user"])
def test_a_kick_ends_and_refuses_for_a_time(guarded: Guarded, part: str, by: str) -> None:
    claims: dict[str, Any] = {"user_id": f"{part}-u", "prefixes": [""]}
    name = f"{part}-a" if by == "--client" else f"{part}-u"
    with guarded.enter(f"{part}-a", **claims) as ann, guarded.enter(f"{part}-b", prefixes=[""]) as other:
        kicked = time.monotonic()
        assert "refused for 600 s" in guarded.command("kick", by, name, "--for", "10m")
        ann.expect_error("auth_failed")
        assert time.monotonic() - kicked < 10 * WITHIN_S  # the command itself starts a process
        ann.expect_close(4001)
        other.send("heartbeat", {})
        other.expect("heartbeat_ack")
        with guarded.server.peer() as again:
            again.send_connect(f"{part}-a", guarded.server.token(f"{part}-a", **claims))
            assert "revoked" in again.expect_error("auth_failed")["message"]
        assert name in guarded.command("access", "list")
        guarded.command("kick", by, name)
        assert name not in guarded.command("access", "list")
    with guarded.enter(f"{part}-a", **claims) as ann:
        guarded.command("kick", by, name)
        assert ann.expect_close(1001) == "ended by the operator"
    guarded.enter(f"{part}-a", **claims).close()


@pytest.mark.req("AUTH-11", "DUR-02")
def test_a_revoked_token_stays_revoked(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--model", "open", "--access-default", "allow") as server:
        guarded = Guarded(server, tmp_path / "none")
        claims: dict[str, Any] = {"claims": {"jti": "t1"}}
        with guarded.enter("ann", **claims) as ann, guarded.enter("ben", claims={"jti": "t2"}) as ben:
            guarded.command("access", "revoke", "t1")
            ann.expect_error("auth_failed")
            ben.commit(["p"], set_event("a", 1))
        server.kill()
        server.start()
        with server.peer() as again:
            again.send_connect("ann", server.token("ann", **claims))
            again.expect_error("auth_failed")
        guarded.enter("ann", claims={"jti": "t3"}).close()
        guarded.command("access", "revoke", "t1", "--for", "0")
        guarded.enter("ann", **claims).close()
        server.stop()
        assert check_directory(server.data).ok
        server.start()


@pytest.mark.req("AUTH-11")
def test_connections_are_listed(guarded: Guarded, part: str) -> None:
    a, b = f"{part}-a", f"{part}-b"
    with guarded.enter(a, user_id="ann", prefixes=[""]) as ann, guarded.enter(b, prefixes=[""]):
        ann.subscribe(part, f"{part}-2")
        lines = guarded.command("connections", "--json").splitlines()
        found = {each["client_id"]: each for each in map(json.loads, lines)}
        assert found[a]["user_id"] == "ann"
        assert (found[a]["profile"], found[a]["subscriptions"]) == ("compatibility", 2)
        assert found[a]["partitions"] == sorted([part, f"{part}-2"])
        assert (found[b]["user_id"], found[b]["subscriptions"]) == (None, 0)
        assert f"{a}  ann" in guarded.command("connections")
    for arguments in (("connections", "--limit", "0"), ("kick",), ("kick", "--client", "x", "--for", "soon")):
        assert unisono(*arguments, "--data", str(guarded.server.data)).exit_code != 0
