"""Who submitted an event, across two nodes on one PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.behaviour.nodes.cluster import cluster, records_of
from tests.behaviour.server.boards import BOARD, does, person
from tests.behaviour.server.harness import Server
from tests.store.postgres.server import shared_server


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[Server]]]:
    postgres = shared_server()
    dsn = postgres.create()
    with cluster(tmp_path_factory.mktemp("boards"), dsn, "ab", *BOARD) as started:
        yield dsn, started
    postgres.drop(dsn)


@pytest.mark.req("VAL-06", "AUTH-10", "EXT-03")
def test_a_role_given_on_one_node_counts_on_the_other(boards: tuple[str, list[Server]], part: str) -> None:
    dsn, (one, other) = boards
    with person(one, "ann") as ann, person(other, "ben", extensions=["identity"]) as ben:
        ben.subscribe(part)
        assert does(ann, part, "member.set", user_id="ann", role="owner") == "committed"
        told = ben.expect("event_broadcast")
        assert (told["user_id"], told["claims"]) == ("ann", {"name": "Ann"})
        assert "only members" in does(ben, part, "card.added", id="c1", list="todo", text="milk")
        assert does(ann, part, "member.set", user_id="ben", role="editor") == "committed"
        ben.expect("event_broadcast")
        assert does(ben, part, "card.added", id="c1", list="todo", text="milk") == "committed"
        assert [each["user_id"] for each in ben.sync([part])["events"]] == ["ann", "ann", "ben"]
        assert does(ann, part, "member.removed", user_id="ben") == "committed"
        ben.expect("event_broadcast")
        assert "only members" in does(ben, part, "card.moved", id="c1", list="done")
    authors = [record.author for record in records_of(dsn) if record.partitions == (part,)]
    assert authors == [
        f'{{"claims":{{"name":"{user.title()}"}},"user_id":"{user}"}}'
        for user in ("ann", "ann", "ben", "ann")
    ]
