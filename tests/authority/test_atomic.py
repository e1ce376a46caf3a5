"""Atomic batches in the authority: one group, one verdict, and a refusal that leaves no trace."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.authority.endless import write_endless_model
from tests.authority.seat import Caller, ItemResult, Seat, candidate, note, push, put, reading, seated
from unisono.ipc.messages import Candidate, RefusedItem
from unisono.model.load import load_model
from unisono.model.model import CANONICAL, COMPATIBILITY
from unisono.model.pack import unpack
from unisono.store.sqlite.log import SqliteLog
from unisono.vocabulary import FieldError


def together(
    caller: Caller, *items: Candidate | RefusedItem, profile: str = COMPATIBILITY
) -> tuple[ItemResult, ...]:
    caller.front.send(msgspec.structs.replace(caller.request(*items, profile=profile), atomic=True))
    return caller.results()


def outcomes(results: tuple[ItemResult, ...]) -> list[int | str | None]:
    """The committed_id of each item, or why it has none."""
    return [result.committed_id or result.reason for result in results]


def state(seat: Seat[SqliteLog], tmp_path: Path, partition: str) -> Any:
    assert seat.command("snapshot", partition)[0]
    with reading(tmp_path / "data") as log:
        snapshot = log.snapshot(partition, 0)
    assert snapshot is not None
    return unpack(snapshot.state)["tree"]


@pytest.mark.req("EXT-10", "EXT-11")
def test_a_batch_is_judged_in_order_and_committed_next_to_each_other(tmp_path: Path) -> None:
    with seated(tmp_path / "data") as seat:
        caller, other = seat.front.connect(), seat.front.connect()
        frame = []
        for number in range(20):
            batch = [candidate(["p"], push(f"{number}-{n}", parent=f"{number}-{n - 1}" if n else "_root"))
                     for n in range(5)]  # fmt: skip
            frame.append(msgspec.structs.replace(caller.request(*batch), atomic=True))
            frame.append(other.request(candidate(["p"], put("x", number))))
        seat.front.send(*frame)
        for number in range(20):
            first = 6 * number + 1
            assert outcomes(caller.results()) == [*range(first, first + 5)]
            assert outcomes(other.results()) == [first + 5]


@pytest.mark.req("EXT-10", "EXT-11", "SUBMIT-08")
@pytest.mark.parametrize("place", range(4))
def test_a_refusal_undoes_what_came_before_it(tmp_path: Path, place: int) -> None:
    with seated(tmp_path / "data") as seat:
        caller = seat.front.connect()
        caller.submit(candidate(["p", "q"], push("a")))
        good = [candidate(["p"], push("b")), candidate(["p", "q"], push("c", parent="a")),
                candidate(["q"], put("title", "x"))]  # fmt: skip
        bad = candidate(["p"], push("a"))
        results = together(caller, *good[:place], bad, *good[place:])
        assert outcomes(results) == ["validation_failed" if n == place else "not_processed" for n in range(4)]
        assert results[place].errors
        assert all(result.errors == () for result in results if result.reason == "not_processed")
        assert seat.front.head() == 1
        assert state(seat, tmp_path, "p") == state(seat, tmp_path, "q")
        assert outcomes(together(caller, *good)) == [2, 3, 4], "their ids are free, and so are the names"
        assert [event.committed_id for event in seat.front.committed()] == [1, 2, 3, 4]


@pytest.mark.req("EXT-10")
def test_what_the_group_has_before_and_behind_a_refused_batch_stays(tmp_path: Path) -> None:
    """All of it in one group: the batch is undone to where the group stood, and no further."""
    with seated(tmp_path / "data", group_s=60.0) as seat:
        caller = seat.front.connect()
        caller.submit(candidate(["p"], push("a")))
        batch = caller.request(
            candidate(["p"], push("c", parent="b")),
            candidate(["new"], push("d")),
            candidate(["p"], push("a")),
        )
        seat.front.send(
            caller.request(candidate(["p"], push("b"))),
            msgspec.structs.replace(batch, atomic=True),
            caller.request(candidate(["p"], push("c")), candidate(["new"], push("d", parent="c"))),
        )
        assert outcomes(caller.results()) == [2]
        assert outcomes(caller.results()) == ["not_processed", "not_processed", "validation_failed"]
        assert outcomes(caller.results()) == [3, "validation_failed"]
        ids = [node["id"] for node in state(seat, tmp_path, "p")["explorer"]["tree"]]
        assert sorted(ids) == ["a", "b", "c"]


@pytest.mark.req("EXT-12", "ORD-03")
def test_a_batch_that_is_committed_gets_its_first_results(tmp_path: Path) -> None:
    batch = [candidate(["p"], push("a")), candidate(["p"], push("b", parent="a"))]
    with seated(tmp_path / "data") as seat:
        first = together(caller := seat.front.connect(), *batch)
        assert together(caller, *batch) == first
        assert together(caller, *reversed(batch)) == tuple(reversed(first))
    with seated(tmp_path / "data") as seat:
        assert together(seat.front.connect(), *batch) == first
        assert seat.front.head() == 2


FORBIDDEN = (FieldError("partitions", "not authorised for 'p'"),)


@pytest.mark.req("EXT-12", "ORD-03", "ORD-04", "AUTHZ-06")
def test_of_a_batch_that_is_committed_in_part_nothing_more_is(tmp_path: Path) -> None:
    a, b, c = (candidate(["p"], push(name)) for name in "abc")
    with seated(tmp_path / "data") as seat:
        caller = seat.front.connect()
        (first,) = caller.submit(b)
        results = together(caller, a, b, c)
        assert outcomes(results) == ["validation_failed", 1, "not_processed"]
        assert results[1] == first
        assert results[0].errors is not None
        assert results[0].errors[0].field == "id"
        # What is refused anyway has its own reason.
        other = candidate(["p"], push("other"), a.id)
        refused = RefusedItem(c.id, ("p",), "forbidden", FORBIDDEN)
        assert outcomes(together(caller, b, refused, a)) == [1, "forbidden", "not_processed"]
        assert outcomes(together(caller, a)) == [2]
        assert outcomes(together(caller, b, other, c)) == [1, "validation_failed", "not_processed"]
        assert seat.front.head() == 2
        # A refused one is told nothing of what exists, also when its id is in the log.
        known = RefusedItem(a.id, ("p",), "forbidden", FORBIDDEN)
        assert outcomes(together(caller, known, c)) == ["forbidden", "not_processed"]


@pytest.mark.req("EXT-11", "LIM-07")
def test_a_batch_is_never_divided_and_one_that_takes_too_long_is_refused(tmp_path: Path) -> None:
    model = load_model(write_endless_model(tmp_path / "model"))
    with seated(tmp_path / "data", model, request_s=0.05, atomic_s=0.5) as seat:
        caller = seat.front.connect()
        slow = [candidate(["p"], note("lingers", for_s=0.03)) for _ in range(6)]
        assert outcomes(together(caller, *slow, profile=CANONICAL)) == [1, 2, 3, 4, 5, 6]
        groups = seat.stats().histograms["group_events"]
        assert (sum(groups.counts), groups.total) == (1, 6)
        slower = [candidate(["p"], note("lingers", for_s=0.2)) for _ in range(6)]
        results = together(caller, *slower, profile=CANONICAL)
        refused = [result for result in results if result.reason == "validation_failed"]
        assert len(refused) == 1
        assert refused[0].errors is not None
        assert "too long" in refused[0].errors[0].message
        assert {result.status for result in results} == {"rejected"}
        assert seat.front.head() == 6


@pytest.mark.req("EXT-10", "EXT-11")
@pytest.mark.parametrize("seed", range(4))
def test_states_are_those_of_the_committed_events_alone(tmp_path: Path, seed: int) -> None:
    """Whatever is refused with whatever: the state is what replaying the log gives."""
    chance = random.Random(seed)
    with seated(tmp_path / "data", group_s=60.0) as seat:
        caller = seat.front.connect()
        sent = []
        for _ in range(60):
            items = [
                candidate(
                    chance.sample("pqr", chance.randrange(1, 4)),
                    push(chance.choice("abcdefgh"), parent=chance.choice(["_root", *"abcdefgh"]))
                    if chance.random() < 0.6
                    else {"type": "treeDelete", "payload": {
                        "target": "explorer", "options": {"id": chance.choice("abcdefgh")}}},
                )
                for _ in range(chance.randrange(1, 4))
            ]  # fmt: skip
            sent.append(msgspec.structs.replace(caller.request(*items), atomic=chance.random() < 0.7))
        seat.front.send(*sent)
        for request in sent:
            results = caller.results()
            if request.atomic and any(result.status == "rejected" for result in results):
                assert not any(result.committed_id for result in results)
        states = {name: state(seat, tmp_path, name) for name in "pqr"}
        head = seat.front.head()
    assert head
    with reading(tmp_path / "data") as log:
        records = log.scan(0, head, limit=head)
    with seated(tmp_path / "again") as seat:
        caller = seat.front.connect()
        for record in records:
            item = Candidate(record.id, record.partitions, record.event, record.hash)
            assert outcomes(caller.submit(item)) == [record.committed_id]
        for name in "pqr":
            assert seat.command("snapshot", name)[0]
    with reading(tmp_path / "again") as log:
        for name in "pqr":
            snapshot = log.snapshot(name, 0)
            assert snapshot is not None
            assert unpack(snapshot.state)["tree"] == states[name]
