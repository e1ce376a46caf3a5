"""Names that a database may find hard to keep: nobody ends a node with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.behaviour.nodes.cluster import cluster, expect_calm, records_of
from tests.behaviour.server.harness import Server, item, new_id, set_event
from tests.behaviour.server.pressure import settled

ODD = ["\0", "a\0b", "\1", "a\1\0", "\x7f", "\ufeff", "\uffff", "\U0010ffff", "'; --", "é" * 40]


@pytest.mark.req("AUTH-03", "ERR-03")
@pytest.mark.parametrize("length", [257, 8000])
def test_a_client_id_that_is_too_long_is_refused_and_the_node_lives(
    database: str, tmp_path: Path, length: int
) -> None:
    """An index of the database takes a third of a page: 8,000 letters would end every node that is told of them."""
    with cluster(tmp_path, database, "a") as (node,):
        who = "".join(chr(0x4E00 + number) for number in range(length // 3 + 1))  # nothing to compress
        with node.peer() as peer:
            peer.send("connect", {"token": node.token(who), "client_id": who})
            peer.expect_error("auth_failed")
            peer.expect_close(4001)
        with node.client("x" * 256) as longest, node.client("\U0001f600" * 64) as another:
            longest.commit(["p"], set_event("x", 1))
            another.commit(["p"], set_event("x", 2))
            assert len(another.history(["p"])) == 2
        assert node.process.poll() is None
        expect_calm(node)


@pytest.mark.req("AUTH-06", "PART-03", "SUBMIT-10")
def test_odd_characters_in_names_are_kept_as_they_came(nodes: list[Server], database: str, part: str) -> None:
    here, there = nodes[0], nodes[1]
    for odd in ODD:
        who, name, id = f"{part}{odd}", f"{part}/{odd}", f"{new_id()}{odd}"
        with here.client(who) as writer, there.client(f"{who}-b") as reader:
            reader.subscribe(name)
            writer.commit([name], set_event("x", odd), id)
            told = reader.expect("event_broadcast")
            assert (told["client_id"], told["partitions"], told["id"]) == (who, [name], id)
            assert writer.commit([name], set_event("x", odd), id) == told["committed_id"]
            assert [event["id"] for event in reader.history([name])] == [id]
        with here.client(who) as older, there.client(who) as newer:
            older.expect_close(4003)
            settled(newer)
    for node in nodes:
        assert node.process.poll() is None


@pytest.mark.req("AUTH-06", "PART-03", "SUBMIT-10")
def test_odd_characters_in_a_log_are_sound(database: str, tmp_path: Path) -> None:
    with cluster(tmp_path, database, "a") as (node,):
        for odd in ODD:
            with node.client(f"who{odd}") as writer:
                writer.submit(item([f"p{odd}"], set_event("x", odd), f"id{odd}"))
    assert {record.client_id for record in records_of(database)} == {f"who{odd}" for odd in ODD}
