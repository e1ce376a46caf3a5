"""Orders on the admin port while the node ends: whoever waits is told so, and nobody is waited for."""

from __future__ import annotations

import http.client
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.behaviour.server.harness import Server, running
from tests.behaviour.server.killing import expect_nothing_left
from tests.behaviour.server.pressure import stopped
from tests.behaviour.server.reloading import post
from tests.waiting import until
from unisono.ipc.files import ADMIN_FILE, COMMAND_TIMEOUT_S

SOON_S: Final = 30.0
"""The end of a node takes well under a second, on a machine that does not stand still."""


def admin_token(server: Server) -> str:
    token: str = json.loads((server.data / ADMIN_FILE).read_text())["token"]
    return token


@pytest.mark.req("DUR-04")
def test_an_order_without_an_answer_does_not_keep_a_failed_node_alive(tmp_path: Path) -> None:
    """Whoever starts the node again waits for its end, and the pipeline has an order under way most of the time."""
    assert COMMAND_TIMEOUT_S > 2 * SOON_S
    with running(tmp_path / "data", "--access-default", "allow") as server, ThreadPoolExecutor() as pool:
        authority = next(iter(server.children()))
        with stopped(authority):
            authorized = {"Authorization": f"Bearer {admin_token(server)}"}
            asked = pool.submit(post, server, "/orders/snapshot?partition=p", **authorized)
            assert not server.is_ready(), "it asks the authority, too, for two seconds"
            os.kill(authority, signal.SIGKILL)
        assert server.process.wait(timeout=SOON_S) == 1
        status, answer = asked.result()
        assert (status, answer) == (503, {"error": "no answer from the authority: authority is gone"})
        expect_nothing_left(server)


def test_an_order_that_comes_only_half_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--access-default", "allow") as server:
        place = urlsplit(server.admin)
        with closing(http.client.HTTPConnection(place.hostname or "", place.port)) as half:
            half.putrequest("POST", "/orders/snapshots")
            half.putheader("Authorization", f"Bearer {admin_token(server)}")
            half.putheader("Content-Length", "1000")
            half.endheaders()
            half.send(b"x")
            until(server.is_ready, "a process does not answer")
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(timeout=SOON_S) == 0
        expect_nothing_left(server)
