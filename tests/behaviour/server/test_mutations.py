"""Damaged messages, a few thousand of them; soak/test_hostile_input.py plays a hundred thousand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.behaviour.server.harness import running
from tests.behaviour.server.mutations import play


@pytest.mark.req("ENV-01", "ENV-02", "ERR-01", "ERR-03", "CONN-10")
def test_damaged_messages_get_defined_answers_and_others_are_served(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--model", "open", "--access-default", "allow") as server:
        closes = play(server, range(3))
        assert closes > 100
        assert server.metric("unisono_errors_total", code="bad_request") > 500
        assert server.metric("unisono_errors_total", code="server_error") == 0
        assert server.metric("unisono_closes_total", code="1002") > 20
