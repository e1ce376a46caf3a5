"""Atomic batches on several nodes of one PostgreSQL."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.behaviour.nodes.cluster import cluster, records_of
from tests.behaviour.server.batches import (
    BatchWriter,
    adjacent,
    all_or_none,
    atomic,
    kill_while_writing,
    outcomes,
    together,
)
from tests.behaviour.server.harness import Server, item, tree_event
from tests.store.postgres.server import shared_server


@pytest.mark.req("EXT-10", "EXT-11", "EXT-12")
def test_batches_of_two_nodes_stay_in_one_piece(nodes: list[Server], part: str) -> None:
    """Both nodes commit at the same time; a third hears everything in order, each batch in one piece."""
    one, other, third = nodes
    found: dict[str, list[int]] = {}

    def work(server: Server, name: str) -> None:
        with atomic(server, f"{part}-{name}") as peer:
            for number in range(20):
                batch = [item([part], tree_event(f"{name}-{number}-{n}"), f"{part}-{name}-{number}-{n}")
                         for n in range(7)]  # fmt: skip
                results = together(peer, *batch)
                assert adjacent(results), results
                found[f"{name}-{number}"] = [result["committed_id"] for result in results]

    with atomic(third, f"{part}-c") as cat:
        cat.subscribe(part)
        threads = [threading.Thread(target=work, args=each) for each in ((one, "a"), (other, "b"))]
        for thread in threads:
            thread.start()
        heard = [cat.expect("event_broadcast")["committed_id"] for _ in range(280)]
        for thread in threads:
            thread.join()
        assert len(found) == 40
        assert heard == sorted(committed_id for batch in found.values() for committed_id in batch)
        # What one node has committed, another answers with the first results; and it judges by it.
        batch = [item([part], tree_event(f"a-0-{n}"), f"{part}-a-0-{n}") for n in range(7)]
        assert [each["committed_id"] for each in together(cat, *batch)] == found["a-0"]
        refused = together(cat, item([part], tree_event("new")), item([part], tree_event("b-3-3")))
        assert outcomes(refused) == ["not_processed", "validation_failed"]
        mixed = together(cat, batch[0], item([part], tree_event("new")))
        assert outcomes(mixed) == ["committed", "validation_failed"]


@pytest.mark.req("EXT-10", "EXT-12", "DUR-02", "DUR-03")
def test_kill_9_of_a_node_leaves_whole_batches_only(tmp_path: Path) -> None:
    postgres = shared_server()
    dsn = postgres.create()
    with cluster(tmp_path, dsn, "ab") as (one, other):
        writers = [BatchWriter(number) for number in range(4)]
        mine, theirs = writers[::2], writers[1::2]
        for _ in range(2):
            answered = sum(len(writer.answered) for writer in mine)
            background = [threading.Thread(target=writer.work, args=[other]) for writer in theirs]
            for thread in background:
                thread.start()
            kill_while_writing(mine, [one], one.kill, answered + 20)
            for writer in mine:
                writer.finish(other)
            other.kill()
            for thread in background:
                thread.join()
            all_or_none(writers, records_of(dsn))
            one.start()
            other.start()
            for writer in theirs:
                writer.finish(one)
        assert all_or_none(writers, records_of(dsn)) == sum(len(writer.batches) for writer in writers)
    postgres.drop(dsn)
