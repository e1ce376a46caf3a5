"""What clients that mean harm send, for long. SOAK_ROUNDS thousands of damaged messages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.behaviour.server.harness import Server, running
from tests.behaviour.server.mutations import play
from tests.behaviour.server.test_hostile import private_kib

THOUSANDS = int(os.environ.get("SOAK_ROUNDS", "100"))
WARM_UP = max(1, THOUSANDS // 5)


def memory_kib(server: Server) -> int:
    """Of the server and its processes, without what they share."""
    return sum(map(private_kib, [server.process.pid, *server.children()]))


@pytest.mark.req("ENV-01", "ENV-02", "ERR-01", "ERR-03", "LIM-05")
@pytest.mark.timeout(120 + 30 * THOUSANDS)
def test_damaged_messages_get_defined_answers_and_leave_nothing(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--model", "open", "--access-default", "allow") as server:
        play(server, range(WARM_UP))
        before = memory_kib(server)
        play(server, range(WARM_UP, THOUSANDS + WARM_UP))
        after = memory_kib(server)
        assert after <= before * 1.1, (
            f"{before} KiB after {WARM_UP} thousand messages, {after} KiB at the end"
        )
