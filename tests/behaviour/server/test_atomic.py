"""Atomic batches over real sockets: all or none, in one piece, for those who asked for the extension."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.server.batches import (
    BatchWriter,
    adjacent,
    all_or_none,
    atomic,
    kill_while_writing,
    outcomes,
    together,
)
from tests.behaviour.server.boards import BOARD, event, person
from tests.behaviour.server.harness import Server, item, running, set_event, tree_event
from unisono.store.check import check_directory
from unisono.store.sqlite.reader import SqliteReader


@pytest.mark.req("EXT-10", "EXT-11")
def test_all_are_committed_next_to_each_other_and_broadcast_in_order(either: Server, part: str) -> None:
    with atomic(either, f"{part}-a") as ann, either.client(f"{part}-b") as ben:
        ben.subscribe(part)
        batch = [item([part], tree_event("a")), item([part, "other"], tree_event("b")),
                 item([part], {"type": "treeMove", "payload": {
                     "target": "explorer", "options": {"id": "b", "parent": "a"}}})]  # fmt: skip
        results = together(ann, *batch)
        assert outcomes(results) == ["committed"] * 3
        assert adjacent(results)
        assert len({result["status_updated_at"] for result in results}) == 1
        told = [ben.expect("event_broadcast") for _ in batch]
        assert [each["id"] for each in told] == [each["id"] for each in batch]
        assert [each["committed_id"] for each in told] == [each["committed_id"] for each in results]
        ben.expect_quiet()
        assert together(ann, *batch) == results, "the first results again (EXT-12)"


@pytest.mark.req("EXT-10", "SUBMIT-05")
def test_one_refused_item_refuses_all(server: Server, part: str) -> None:
    with atomic(server, f"{part}-a") as ann, server.client(f"{part}-b") as ben:
        ann.commit([part], tree_event("a"))
        ben.subscribe(part)
        good, bad = item([part], tree_event("b")), item([part], tree_event("a"))
        behind = item([part], {"type": "nonsense"})
        results = together(ann, good, bad, behind)
        assert outcomes(results) == ["not_processed", "validation_failed", "not_processed"]
        assert [set(each) for each in results] == [
            {"id", "status", "status_updated_at", "reason", "errors"}
        ] * 3
        assert results[1]["errors"][0]["field"] == "event.payload.value.id"
        assert results[0]["errors"] == []
        ben.expect_quiet()
        assert [each["event"]["payload"]["value"]["id"] for each in ben.history([part])] == ["a"]
        assert outcomes(together(ann, good)) == ["committed"]


@pytest.mark.req("EXT-10", "AUTHZ-03")
def test_a_forbidden_partition_refuses_all(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--model", "open") as server, server.peer() as peer:
        token = server.token("ann", partitions=["p"])
        peer.connect("ann", token, supported_profiles=["compatibility"], extensions=["atomic"])
        good, bad = item(["p"], tree_event("a")), item(["p", "q"], tree_event("b"))
        results = together(peer, good, bad)
        assert outcomes(results) == ["not_processed", "forbidden"]
        assert results[1]["errors"][0]["message"] == "not authorised for 'q'"
        assert peer.history(["p"]) == []


@pytest.mark.req("EXT-02", "EXT-10", "ENV-03")
@pytest.mark.parametrize("extensions", [None, ["presence"]])
@pytest.mark.parametrize("size", [1, 8000])
def test_without_the_extension_the_field_is_unknown(
    server: Server, part: str, extensions: list[str] | None, size: int
) -> None:
    """A short message and a long one, which are read in different ways."""
    with server.client(f"{part}-a", extensions=extensions) as peer:
        batch = [item([part], tree_event(f"{n % 2}", text="x" * size)) for n in range(3)]
        for number, value in enumerate((True, "yes", {"deep": [1]})):
            results = together(peer, *batch, atomic=value)
            expected = ["committed", "committed", "validation_failed"]
            assert outcomes(results) == expected, number


@pytest.mark.req("EXT-10", "ENV-02", "SUBMIT-01")
@pytest.mark.parametrize("size", [1, 8000])
def test_what_the_field_may_be(server: Server, part: str, size: int) -> None:
    with atomic(server, f"{part}-a") as peer:
        wrong: list[Any] = ["yes", 1, {}, []]
        for value in wrong:
            peer.send(
                "submit_events", {"events": [item([part], set_event("x", "y" * size))], "atomic": value}
            )
            peer.expect_error("bad_request")
        for off in (False, None):
            bad = item([part], {"type": "nonsense"})
            good = item([part], set_event("x", "y" * size))
            assert outcomes(together(peer, bad, good, atomic=off)) == ["validation_failed", "committed"]
        for events in ([], [item([part], set_event("x", n)) for n in range(101)]):
            peer.send("submit_events", {"events": events, "atomic": True})
            peer.expect_error("bad_request")
        twice = item([part], set_event("x", 1))
        peer.send("submit_events", {"events": [twice, twice], "atomic": True})
        peer.expect_error("bad_request")
        hundred = [item([part], set_event("x", n)) for n in range(100)]
        assert adjacent(together(peer, *hundred))
        peer.send("submit_event", {**item([part], set_event("x", 1)), "atomic": True})
        peer.expect("event_committed")


@pytest.mark.req("EXT-12", "ORD-03")
def test_a_batch_that_is_in_the_log_in_part(server: Server, part: str) -> None:
    with atomic(server, f"{part}-a") as ann, server.client(f"{part}-b") as ben:
        a, b, c = (item([part], tree_event(name)) for name in "abc")
        (first,) = ben.submit(b)
        results = together(ann, a, b, c)
        assert outcomes(results) == ["validation_failed", "committed", "not_processed"]
        assert results[1] == first
        assert "committed before, without this one" in results[0]["errors"][0]["message"]
        assert outcomes(together(ann, a, c)) == ["committed"] * 2


@pytest.mark.req("EXT-13")
def test_a_page_ends_between_batches_where_it_can(small_pages: Server, part: str) -> None:
    """Pages of 6: batches of 1, 2 and 3 are never divided, one of 8 has to be."""
    sizes = [2, 3, 3, 1, 2, 3, 1, 3, 3, 2]
    with atomic(small_pages, f"{part}-a") as ann, atomic(small_pages, f"{part}-b") as ben:
        ids = []
        for number, size in enumerate([*sizes, 8, 2]):
            peer = ann if number % 2 else ben
            results = together(peer, *(item([part], set_event("x", n)) for n in range(size)))
            ids.append([result["committed_id"] for result in results])
        pages, since, more = [], 0, True
        while more:
            page = ann.sync([part], since, limit=6)
            pages.append([each["committed_id"] for each in page["events"]])
            since, more = page["next_since_committed_id"], page["has_more"]
            assert not more or since == pages[-1][-1]
        every = [*chain(*ids)]
        assert [*chain(*pages)] == every, "each event once, in order (SYNC-01)"
        divided = [batch for batch in ids if not any(set(batch) <= set(page) for page in pages)]
        assert [len(batch) for batch in divided] == [8]
    with small_pages.client(f"{part}-c") as plain:
        page = plain.sync([part], 0, limit=6)
        assert [each["committed_id"] for each in page["events"]] == every[:6], "as before (EXT-02)"


def card(id: str) -> dict[str, Any]:
    return item(["b"], event("card.added", id=id, list="todo", text=id))


@pytest.mark.req("EXT-10", "VAL-06")
def test_a_transfer_is_judged_by_the_rules_on_each_others_result(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--access-default", "allow", *BOARD) as server:
        ann = person(server, "ann", extensions=["atomic"])
        with ann:
            owner = item(["b"], event("member.set", user_id="ann", role="owner"))
            moved = item(["b"], event("card.moved", id="c1", list="done"))
            assert outcomes(together(ann, card("c1"), owner)) == ["validation_failed", "not_processed"]
            assert outcomes(together(ann, owner, card("c1"), moved)) == ["committed"] * 3
            gone = item(["b"], event("card.moved", id="nothing", list="done"))
            assert outcomes(together(ann, card("c2"), gone)) == ["not_processed", "validation_failed"]
            assert [each["event"]["payload"]["schema"] for each in ann.history(["b"])] == [
                "member.set", "card.added", "card.moved",
            ]  # fmt: skip


@pytest.mark.req("EXT-10", "EXT-12", "DUR-02", "DUR-03")
def test_kill_9_leaves_whole_batches_only(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(data, "--access-default", "allow", "--fronts", "2") as server:
        writers = [BatchWriter(number) for number in range(4)]
        for _ in range(3):
            answered = sum(len(writer.answered) for writer in writers)
            kill_while_writing(writers, [server], server.kill, answered + 30)
            assert check_directory(data).ok
            log = SqliteReader.open(data)
            records = log.scan(0, log.head(), limit=log.head() or 1)
            log.close()
            all_or_none(writers, list(records))
            server.start()
            for writer in writers:
                writer.finish(server)
        log = SqliteReader.open(data)
        records = log.scan(0, log.head(), limit=log.head())
        log.close()
        assert all_or_none(writers, list(records)) == sum(len(writer.batches) for writer in writers)
