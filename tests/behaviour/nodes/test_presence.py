"""Presence across nodes on one PostgreSQL."""

from __future__ import annotations

from typing import Any

import pytest

from tests.behaviour.server.harness import Server
from tests.behaviour.server.test_presence import here, say, seen


@pytest.mark.req("EXT-05", "EXT-06")
def test_presence_reaches_other_nodes(nodes: list[Server], part: str) -> None:
    first, second, third = nodes
    a, b = f"{part}-a", f"{part}-b"
    with here(first, a, part) as ann, here(second, b, part) as ben:
        say(ann, part, {"cursor": "é\u0000"})
        state: dict[str, Any] = {}
        update = seen(ben, state, lambda now: now == {a: {"cursor": "é\u0000"}})
        assert update["present"][0]["user_id"] == f"u-{a}"
        for place in range(30):
            say(ann, part, place)
        seen(ben, state, lambda now: now == {a: 29})
        say(ben, part, "b")
        seen(ann, {}, lambda now: now.get(b) == "b")
        with here(third, f"{part}-c", part) as cat:
            assert {each["client_id"] for each in cat.expect("presence_update")["present"]} == {a, b}
            # The same client on another node: what is said there counts, also when the first connection ends.
            with here(third, a) as moved:
                say(moved, part, "moved")
                seen(cat, elsewhere := {}, lambda now: now.get(a) == "moved")  # type: ignore[var-annotated]
                seen(ben, state, lambda now: now.get(a) == "moved")
                assert elsewhere[a] == "moved"
            seen(ben, state, lambda now: a not in now)
            seen(cat, elsewhere, lambda now: a not in now)


@pytest.mark.req("EXT-05")
def test_many_values_reach_other_nodes(nodes: list[Server], part: str) -> None:
    """More than one NOTIFY can carry."""
    peers = [here(nodes[number % 2], f"{part}-{number}") for number in range(40)]
    with here(nodes[2], f"{part}-x", part) as watcher:
        for number, peer in enumerate(peers):
            say(peer, part, f"{number}-" + "v" * 900)
        seen(watcher, {}, lambda now: len(now) == 40)
        for peer in peers:
            peer.close()
        seen(watcher, state := {}, lambda now: not now)  # type: ignore[var-annotated]
        assert state == {}
