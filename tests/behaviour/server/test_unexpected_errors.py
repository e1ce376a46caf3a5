"""Errors that keep a connection open, and errors of the program that end one connection and no other."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.behaviour.server.harness import Server, item, tree_event
from tests.behaviour.server.pressure import settled
from tests.behaviour.server.signing import OwnCommand
from tests.client.running import until as until_then
from unisono.front.timers import Timers


@pytest.mark.req("ERR-01", "ERR-02")
@pytest.mark.parametrize(
    ("code", "kind", "payload"),
    [
        ("bad_request", "submit_events", {"events": []}),
        ("bad_request", "sync", {"partitions": ["p"], "since_committed_id": -1}),
        ("validation_failed", "sync", {"partitions": [], "since_committed_id": 0}),
        ("validation_failed", "sync", {"partitions": ["p"] * 1001, "since_committed_id": 0}),
        ("validation_failed", "sync", {"partitions": ["p", ""], "since_committed_id": 0}),
        ("forbidden", "sync", {"partitions": ["not mine"], "since_committed_id": 0}),
    ],
)
def test_errors_that_keep_the_connection_open(
    server: Server, who: str, part: str, code: str, kind: str, payload: dict[str, Any]
) -> None:
    with server.peer() as peer:
        peer.connect(who, server.token(who, partitions=[part, "p"]))
        peer.send(kind, payload)
        error = peer.expect_error(code)
        assert error.keys() <= {"code", "message", "details"}
        assert error["message"]
        for internal in ("Traceback", "unisono", "msgspec", ".py", "0x"):
            assert internal not in error["message"]
        assert peer.sync([part])["events"] == []


FAULTY = """
import sys
from pathlib import Path
from unisono.cli import logs
from unisono.cli.settings import load
from unisono.front.access import Access
from unisono.front.auth.verify import Verifier
from unisono.front.auth.sources import SharedSecret
from unisono.node.start import serve
from unisono.model.model import open_model

class FaultyVerifier(Verifier):
    def verify_now(self, token, claimed_client_id, now_s, stored_claims=()):
        if claimed_client_id.endswith("faulty verifier"):
            raise RuntimeError("the internals of a verifier")
        if claimed_client_id.endswith("faulty keys"):
            return None
        return super().verify_now(token, claimed_client_id, now_s, stored_claims)

    async def verify(self, token, claimed_client_id, now_s, stored_claims=()):
        raise RuntimeError("the internals of a source of keys")

class FaultyAccess(Access):
    def denied(self, identity, partitions):
        if "faulty access" in partitions:
            raise ZeroDivisionError("the internals of access")
        return super().denied(identity, partitions)

data, secret = sys.argv[1:]
logs.set_up("text", "info")
settings = load(None, {}, {"data": data, "port": "0", "admin_port": "0"})
keys = lambda: FaultyVerifier(SharedSecret.from_file(secret))
sys.exit(serve(settings, open_model(), keys, FaultyAccess(None, "allow"), lambda line: print(line, flush=True)))
"""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real node that was handed a verifier and an access that raise what nobody expects."""
    data = tmp_path_factory.mktemp("faulty") / "data"
    secret = data.parent / "data.secret"
    started = OwnCommand(data, [sys.executable, "-c", FAULTY, str(data), str(secret)])
    started.start()
    yield started
    started.kill()


@pytest.mark.req("ERR-03", "ERR-01", "ERR-02", "CONN-10")
@pytest.mark.parametrize(
    "where", ["faulty verifier", "faulty keys", "sync", "subscription", "submit_event", "submit_events"]
)
def test_an_unexpected_error_ends_that_connection_and_no_other(
    faulty: Server, who: str, part: str, where: str
) -> None:
    with faulty.client(f"{who}-b") as other, faulty.peer() as peer:
        other.subscribe(part)
        connecting = where in ("faulty verifier", "faulty keys")
        me = f"{who} {where}" if connecting else who
        peer.send(
            "connect",
            {"token": faulty.token(me), "client_id": me, "supported_profiles": ["compatibility"]},
        )
        if not connecting:
            peer.expect("connected")
            good, bad = item([part], tree_event("A")), item([part, "faulty access"], tree_event("B"))
            kind, payload = {
                "sync": ("sync", {"partitions": ["faulty access"], "since_committed_id": 0}),
                "subscription": (
                    "sync",
                    {
                        "partitions": [part],
                        "since_committed_id": 0,
                        "subscription_partitions": ["faulty access"],
                    },
                ),
                "submit_event": ("submit_event", bad),
                "submit_events": ("submit_events", {"events": [good, bad]}),
            }[where]
            peer.send(kind, payload)
        error = peer.expect_error("server_error")
        assert error.keys() == {"code", "message"}
        assert "internals" not in error["message"]
        peer.expect_close(1011)
        other.expect_quiet(0.05)
        assert other.history([part]) == []
        other.commit([part], tree_event("C"))
        assert faulty.metric("unisono_in_flight_items") == 0
    with faulty.client(who) as again:
        settled(again)
    assert faulty.process.poll() is None
    assert "internals" in faulty.log.read_text()  # for the operator, with its traceback


@pytest.mark.req("ERR-03")
def test_a_timer_that_fails_does_not_stop_the_others() -> None:
    rang: list[str] = []

    def fails(now: float) -> None:
        rang.append("fails")
        raise ZeroDivisionError

    def again(now: float) -> float | None:
        rang.append("again")
        return now + 0.01 if rang.count("again") < 3 else None

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        timers = Timers(loop)
        timers.at(loop.time() + 0.001, fails)
        timers.at(loop.time() + 0.002, again)
        await until_then(lambda: "again" in rang)
        timers.at(loop.time() + 0.01, fails)
        await until_then(lambda: len(rang) == 5)
        await asyncio.sleep(0.02)
        timers.close()

    asyncio.run(scenario())
    assert rang.count("fails") == 2
    assert rang.count("again") == 3
