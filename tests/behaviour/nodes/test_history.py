"""History backwards, on nodes that share one PostgreSQL."""

from __future__ import annotations

import pytest

from tests.behaviour.server.harness import Server, set_event
from tests.behaviour.server.test_history import ask, check_pages, reading


@pytest.mark.req("EXT-20", "EXT-21")
def test_pages_are_the_history_backwards(nodes: list[Server], part: str) -> None:
    check_pages(nodes[0], nodes[1], part)


@pytest.mark.req("EXT-20", "EXT-03")
def test_events_of_other_nodes_have_their_authors(nodes: list[Server], part: str) -> None:
    with (
        reading(nodes[0], f"{part}-a", user_id="ann") as ann,
        reading(nodes[1], f"{part}-b", "identity") as ben,
    ):
        ids = [ann.commit([part], set_event("k", number)) for number in range(5)]
        ben.sync([part])
        page = ask(ben, part, limit=3)
        assert [(each["committed_id"], each["user_id"]) for each in page["events"]] == [
            (id, "ann") for id in ids[:1:-1]
        ]
