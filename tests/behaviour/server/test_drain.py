"""How a server ends: on request, in order and without loss; or with a clear word and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from tests.behaviour.server.harness import Closed, Peer, Server, item, running, set_event, tree_event
from tests.behaviour.server.killing import expect_nothing_left
from tests.forking import run
from tests.waiting import PATIENCE_S, until
from unisono.store.check import check_directory
from unisono.store.sqlite.log import SqliteReader

ALLOW = ("--access-default", "allow")


def status(server: Server, path: str) -> int:
    try:
        server.get(path)
    except urllib.error.HTTPError as error:
        return error.code
    return 200


def stored(data: Path) -> dict[str, int]:
    """What is in the log of a server that has ended."""
    assert check_directory(data).ok
    reader = SqliteReader.open(data)
    try:
        return {record.id: record.committed_id for record in reader.scan(0, 2**53, limit=1_000_000)}
    finally:
        reader.close()


@pytest.mark.req("CONN-10")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_an_idle_server_says_goodbye(tmp_path: Path, name: str) -> None:
    long = ("--drain-timeout-s", "600", "--close-grace-s", "600")  # nothing has to be waited for
    with running(tmp_path / "data", *ALLOW, *long) as server:
        connected, opened = server.client("a"), server.peer()
        committed_id = connected.commit(["p"], set_event("a", 1), id="e1")
        server.process.send_signal(signal.Signals[name])
        connected.expect_close(1001)
        opened.expect_close(1001)
        assert server.process.wait(timeout=PATIENCE_S) == 0
        expect_nothing_left(server)
        assert not server.accepts()
        assert not (server.data / "admin.json").exists()
    assert stored(server.data) == {"e1": committed_id}


def put_in_flight(peer: Peer, *drafts: dict[str, Any]) -> None:
    """Submit without waiting for the answer; on return the front has handed the request on."""
    peer.send("submit_events", {"events": list(drafts)})
    for _ in range(2):  # the second is answered in a later turn of the event loop than the first
        peer.send("heartbeat", {})
        peer.expect("heartbeat_ack")


@pytest.mark.req("CONN-10", "SUBMIT-07")
def test_what_is_queued_is_answered_before_the_end(tmp_path: Path) -> None:
    with running(tmp_path / "data", *ALLOW) as server:
        until(server.is_ready, "a process does not answer")
        peer, other = server.client("a"), server.client("b")
        other.subscribe("p")
        authority = next(iter(server.children()))
        os.kill(authority, signal.SIGSTOP)
        batch = [item(["p"], tree_event(f"n{number}")) for number in range(3)]
        peer.send("submit_event", batch[0])
        put_in_flight(peer, *batch[1:])

        server.process.send_signal(signal.SIGTERM)
        until(lambda: not server.accepts(), "new connections are accepted")
        assert status(server, "/healthz") == 200
        assert status(server, "/readyz") == 503
        peer.send("submit_events", {"events": [item(["p"], tree_event("too late"), id="late")]})
        peer.expect_quiet()

        os.kill(authority, signal.SIGCONT)
        committed = peer.expect("event_committed")
        results = peer.expect("submit_events_result")["results"]
        peer.expect_close(1001)
        # A connection with nothing in flight is let go at once; it catches up by sync.
        other.expect_close(1001)
        assert server.process.wait(timeout=PATIENCE_S) == 0
        expect_nothing_left(server)
    told = {result["id"]: result["committed_id"] for result in (committed, *results)}
    assert stored(server.data) == told
    assert list(told) == [draft["id"] for draft in batch]


@pytest.mark.req("DUR-04")
def test_a_failure_during_the_drain_is_told(tmp_path: Path) -> None:
    with running(tmp_path / "data", *ALLOW) as server:
        peer = server.client("a")
        authority = next(iter(server.children()))
        os.kill(authority, signal.SIGSTOP)
        put_in_flight(peer, item(["p"], tree_event("A")))
        server.process.send_signal(signal.SIGTERM)
        until(lambda: not server.accepts(), "new connections are accepted")
        os.kill(authority, signal.SIGKILL)
        peer.expect_error("server_error")
        peer.expect_close(1011)
        assert server.process.wait(timeout=PATIENCE_S) == 1
        expect_nothing_left(server)
    assert stored(server.data) == {}


@pytest.mark.req("LIM-05")
def test_a_drain_does_not_wait_for_ever(tmp_path: Path) -> None:
    limits = ("--drain-timeout-s", "0.3", "--close-grace-s", "0.2")
    with running(tmp_path / "data", *ALLOW, *limits) as server:
        peer = server.client("a")
        os.kill(next(iter(server.children())), signal.SIGSTOP)
        put_in_flight(peer, item(["p"], tree_event("A")))
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(Closed):
            peer.receive()
        assert server.process.wait(timeout=PATIENCE_S) == 1, "what had to be killed is not a clean end"
        expect_nothing_left(server)
        assert "authority does not exit: killing it" in server.log.read_text()
    assert stored(server.data) == {}


@pytest.mark.req("SUBMIT-07", "DUR-02")
def test_sigterm_under_the_load_of_eight_writers(tmp_path: Path) -> None:
    writers = 8
    with running(tmp_path / "data", *ALLOW, "--fronts", "2") as server:
        busy = threading.Barrier(writers + 1)

        def write(number: int) -> dict[str, int]:
            told: dict[str, int] = {}
            peer = server.client(f"writer-{number}")
            try:
                for turn in range(1_000_000):
                    batch = [item([f"p{number}"], tree_event(f"n{turn}-{half}")) for half in range(3)]
                    with contextlib.suppress(ConnectionClosed):  # the next receive tells how
                        peer.send("submit_events", {"events": batch})
                    if turn == 5:
                        busy.wait(PATIENCE_S)
                    for result in peer.expect("submit_events_result")["results"]:
                        told[result["id"]] = result["committed_id"]
            except Closed as closed:
                if closed.code != 1001:
                    raise
            return told

        with ThreadPoolExecutor(writers) as pool:
            working = [pool.submit(write, number) for number in range(writers)]
            busy.wait(PATIENCE_S)
            server.process.send_signal(signal.SIGTERM)
            told = [future.result(timeout=PATIENCE_S) for future in working]
        assert server.process.wait(timeout=PATIENCE_S) == 0
        expect_nothing_left(server)
    # Whatever was judged was answered: the log holds what was acknowledged, no less and no more.
    assert stored(server.data) == {id: n for one in told for id, n in one.items()}
    assert all(len(one) >= 15 for one in told)


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A server that is expected not to start."""
    return run("serve", *arguments)


def test_a_second_server_on_the_same_directory_is_told_who_has_it(tmp_path: Path) -> None:
    with running(tmp_path / "data", *ALLOW) as server, server.client("a") as peer:
        admin = json.loads((server.data / "admin.json").read_text())
        second = serve(
            "--data", str(server.data), "--port", "0", "--admin-port", "0",
            "--jwt-secret-file", str(server.secret_file),
        )  # fmt: skip
        assert second.returncode == 2
        assert second.stdout == ""
        authority = next(iter(server.children()))
        assert f"{server.data} is in use by process {authority}: stop it first" in second.stderr
        assert "Traceback" not in second.stderr
        assert peer.commit(["p"], set_event("a", 1)) == 1, "the first one goes on"
        assert json.loads((server.data / "admin.json").read_text()) == admin


def test_an_occupied_port_is_named(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret of at least thirty-two bytes")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for ports in (("--port", port, "--admin-port", "0"), ("--port", "0", "--admin-port", port)):
            refused = serve("--data", str(tmp_path / "data"), *ports, "--jwt-secret-file", str(secret))
            assert refused.returncode == 1
            assert refused.stdout == ""
            assert f"127.0.0.1:{port}" in refused.stderr
            assert "in use" in refused.stderr
            assert "Traceback" not in refused.stderr
    assert not (tmp_path / "data").exists(), "nothing was made before it was clear that it can start"


def test_when_the_node_is_killed_its_children_end(tmp_path: Path) -> None:
    with running(tmp_path / "data", *ALLOW, "--fronts", "2") as server:
        peer = server.client("a")
        peer.commit(["p"], set_event("a", 1), id="e1")
        assert len(server.children()) == 4
        os.kill(server.process.pid, signal.SIGKILL)
        with contextlib.suppress(Closed):  # cut off, or told so when the front heard of the authority first
            peer.expect_error("server_error")
        expect_nothing_left(server)
    assert stored(server.data) == {"e1": 1}


@pytest.mark.req("DUR-04", "ERR-01")
@pytest.mark.parametrize("role", ["authority", "reader", "front"])
def test_when_a_child_is_killed_the_node_ends_and_says_so(tmp_path: Path, role: str) -> None:
    with running(tmp_path / "data", *ALLOW) as server:
        peer = server.client("a")
        peer.commit(["p"], set_event("a", 1), id="e1")
        children = dict(zip(("authority", "reader", "front"), server.children(), strict=True))
        os.kill(children[role], signal.SIGKILL)
        if role == "front":
            with pytest.raises(Closed):
                peer.receive()
        else:
            peer.expect_error("server_error")
            peer.expect_close(1011)
        code = server.process.wait(timeout=PATIENCE_S)
        assert code > 0
        expect_nothing_left(server)
        name = "front 0" if role == "front" else role
        assert f"{name} ended unexpectedly: stopping the node" in server.log.read_text()
    assert stored(server.data) == {"e1": 1}
