"""The console of a node on a shared log: events of all nodes, their past, and the clients of all nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from tests.behaviour.server.harness import Server, set_event
from tests.console.operator import Operator


def test_a_console_shows_what_all_nodes_do(nodes: list[Server], part: str, who: str) -> None:
    first, second, _ = nodes
    operator = Operator(second)
    with first.client(who) as client:
        ids = [client.commit([part], set_event("settings.theme", value)) for value in ("dark", "light")]
        listed = operator.get("connections")["connections"]
        assert (who, "a") in [(each["client_id"], each["node"]) for each in listed]
    found = operator.get("events", partition=part)
    assert [each["committed_id"] for each in found["events"]] == ids[::-1]
    (partition,) = operator.get("partitions", prefix=part)["partitions"]
    assert (partition["name"], partition["events"], partition["last"]) == (part, 2, ids[1])
    state = operator.get("state", partition=part, at=ids[0])["value"]
    assert state["tree"] == {"settings": {"theme": "dark"}}
    path = json.dumps(["tree", "settings", "theme"])
    why = operator.get("changes", partition=part, at=ids[1], path=path)
    assert [each["event"]["client_id"] for each in why["changes"]] == [who, who]
    now = operator.get("now")
    assert now["store"] == "shared"
    seen = {each["name"]: each["seen_s"] for each in now["nodes"]}
    assert set(seen) == {"a", "b", "c"}
    assert max(seen.values()) < 600


def test_a_node_that_does_not_answer_is_named(nodes: list[Server], part: str, who: str) -> None:
    first, second, _ = nodes
    operator = Operator(second)
    with first.client(who):
        assert operator.get("connections")["silent_nodes"] == []
        assert first.process is not None
        os.kill(first.process.pid, signal.SIGSTOP)  # the node alone: its processes go on
        try:
            found = operator.get("connections")
            ran = subprocess.run(
                [sys.executable, "-m", "unisono", "connections", "--data", str(second.data)],
                capture_output=True,
                text=True,
            )
        finally:
            os.kill(first.process.pid, signal.SIGCONT)
        assert found["silent_nodes"] == ["a"]
        assert {"client_id": who, "node": "a"} in found["connections"]
        assert "node a did not answer within a second" in ran.stderr
        assert ran.returncode == 0
        assert who in ran.stdout
