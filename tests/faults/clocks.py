"""The wall clock of a server jumps, by libfaketime, while clients write.

Which clock decides what:

- heartbeats, the handshake's window, drains, rate limits, timeouts of rules, waits for locks and retries: the
  monotonic clock, which does not jump;
- the end of a token (`exp`, `nbf`): the wall clock, looked at when the timer is due and at least once in a
  heartbeat's window, so a clock that is set forward ends a connection then, and one that is set back keeps it;
- keys fetched from a URL: the wall clock; a clock that was set back counts as "long ago";
- `status_updated_at`, `timestamp`, `server_time`: the wall clock; the time of events does not go back by less than
  CLOCK_SKEW_MAX_MS, and nothing is ordered by it;
- catch-up, order, deduplication, takeovers: no clock, only `committed_id` and epochs;
- nodes: heartbeats are sent by the monotonic clock of the node and judged by the clock of the database alone;
- the lake's lease: a waiter measures by its own monotonic clock; who does not wait compares monotonic clocks on one
  machine, and wall clocks across machines.
"""

from __future__ import annotations

import os
import random
import socket
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.nodes.cluster import cluster
from tests.behaviour.server.harness import Peer, Server
from tests.behaviour.server.killing import SERVE
from tests.faults.draining import Subscriber
from tests.faults.workload import Load, Tally, load
from tests.waiting import PATIENCE_S, until

LIBRARIES = [
    *Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"),
    *Path("/usr/lib").glob("faketime/libfaketimeMT.so.1"),
]

HOUR_S, DAY_S = 3600, 86_400
JUMPS_S = (HOUR_S, -HOUR_S, DAY_S, -DAY_S)
HEARTBEAT_S = 2.0
EARLY_S = 0.5
"""Between the silent one's last message and the moment from which on it is timed."""

TIMERS = (
    "--heartbeat-timeout-s", str(HEARTBEAT_S), "--heartbeat-any-message", "--close-grace-s", "0.2",
)  # fmt: skip
NEAR_S = 300.0
"""Far less than a jump, and more than any machine stands still."""


class JumpingServer(Server):
    """A server whose wall clock is ahead of this machine's by `shift`; tokens last for days of it."""

    def __init__(self, data: Path, *arguments: str) -> None:
        self._shift = data.parent / f"{data.name}.shift"
        environment = {
            "LD_PRELOAD": str(LIBRARIES[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self._shift),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        super().__init__(data, *arguments, preexec_fn=os.getpid, env=os.environ | environment)
        self.shift(0)

    def shift(self, seconds: int) -> None:
        fresh = self._shift.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}s\n")
        fresh.replace(self._shift)

    def token(self, client_id: str, *, ttl_s: float = 30 * DAY_S, **claims: Any) -> str:
        return super().token(client_id, ttl_s=ttl_s, **claims)


def require_faketime() -> None:
    if not LIBRARIES:
        pytest.skip("libfaketime is not installed")


def jump_clock(data: Path, jumps: int, seed: int, dsn: str | None = None) -> Tally:
    """Set the clock again and again; connections live on, and those whose tokens end do not.

    With a `dsn` the server is a node beside another one whose clock is right.
    """
    dice = random.Random(seed)
    node = () if dsn is None else ("--store", dsn, "--node-name", "jumping")
    server = JumpingServer(data, *SERVE, *TIMERS, *node)
    with ExitStack() as stack:
        others = [] if dsn is None else stack.enter_context(cluster(data.parent, dsn, "b", *TIMERS))
        server.start()
        stack.callback(server.kill)
        servers = [server, *others]
        with load(servers, writers=2, followers=1, seed=seed, pace_s=0.2) as work:
            for number in range(jumps):
                jump_s = JUMPS_S[number] if number < len(JUMPS_S) else dice.choice(JUMPS_S)
                _jump(server, work, jump_s)
            tally = work.settle(dsn or data, servers)
            assert not tally.ends, "a connection ended because a clock was set"
            assert server.stop() == 0
            return tally


def _jump(server: JumpingServer, work: Load, jump_s: int) -> None:
    """From the right time to another and back. Half an hour is left of the token of one connection."""
    work.expect_progress()
    short, token = server.peer(), server.token("short-lived", ttl_s=HOUR_S / 2)
    with short, closing(_silent(server)) as silent:
        short.connect("short-lived", token, supported_profiles=["compatibility"])
        since = time.monotonic()
        work.fault(f"clock {jump_s:+d} s")
        server.shift(jump_s)
        _expect_ahead(server, jump_s)
        if jump_s > 0:
            short.expect_error("auth_failed")
            with server.peer() as late:
                late.send_connect("short-lived", token)
                late.expect_error("auth_failed")
        _expect_let_go_for_silence(silent, since)
        work.expect_progress()
        work.fault(f"clock {-jump_s:+d} s")
        server.shift(0)
        _expect_ahead(server, 0)
        if jump_s < 0:
            assert abs(_ahead_s(short)) < NEAR_S, "it is connected as before"
    work.expect_progress()


def _expect_ahead(server: Server, seconds: int) -> None:
    with server.client("clock-reader") as peer:
        until(lambda: abs(_ahead_s(peer) - seconds) < NEAR_S, f"the clock is not {seconds} s ahead")


def _ahead_s(peer: Peer) -> float:
    """By how much the server's time is ahead of this process's."""
    peer.send("heartbeat", {})
    message = peer.receive()
    assert message["type"] == "heartbeat_ack", message
    ahead: float = message["timestamp"] / 1000 - time.time()
    return ahead


def _silent(server: Server) -> socket.socket:
    """A connection that says nothing after its first request, and answers no ping."""
    return Subscriber(server.url, "nothing-here", server.token("silent"), "silent").socket


def _expect_let_go_for_silence(silent: socket.socket, since: float) -> None:
    """After the heartbeat's window by the monotonic clock; neither at once nor never."""
    silent.settimeout(PATIENCE_S)
    while silent.recv(65_536):
        pass
    assert time.monotonic() - since > HEARTBEAT_S - EARLY_S
