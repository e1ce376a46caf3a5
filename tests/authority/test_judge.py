"""What becomes of one item: the order of questions, and the same through a running authority."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.authority.seat import Seat, candidate, new_id, push, put, reading, seated
from unisono.authority.judge import Commit, Duplicate, Reject, Verdict, judge
from unisono.authority.states.resident import States
from unisono.ipc.messages import Candidate, EventCommitted, RefusedItem, SingleOutcome
from unisono.model.model import COMPATIBILITY, no_model
from unisono.store.port import RememberedId
from unisono.store.sqlite.log import SqliteLog
from unisono.vocabulary import FieldError

FORBIDDEN = (FieldError("partitions.0", "not yours"),)


@pytest.fixture
def states(tmp_path: Path) -> Iterator[States]:
    store = SqliteLog.open(tmp_path / "data")
    yield States(no_model(), store, bytes_max=1 << 20, snapshot_every=0, now_ms=lambda: 0)
    store.close()


@pytest.fixture
def seat(tmp_path: Path) -> Iterator[Seat[SqliteLog]]:
    with seated(tmp_path / "data", fronts=2) as seat:
        yield seat


def verdict(states: States, item: Candidate | RefusedItem, *known: Candidate) -> Verdict:
    """The verdict on `item` in partitions that are in memory, where `known` were committed before."""
    states.reset_fold_budget()
    assert states.ready(item.partitions)
    before = {one.id: RememberedId(7, one.hash, "somebody", 1234) for one in known}
    return judge(item, COMPATIBILITY, before, states.stage)


@pytest.mark.req("AUTHZ-06")
def test_a_refusal_by_the_front_comes_first_and_tells_nothing_of_what_exists(states: States) -> None:
    committed = candidate(["p"], push("a"))
    refused = RefusedItem(committed.id, ("p",), "forbidden", FORBIDDEN)
    assert verdict(states, refused) == Reject("forbidden", FORBIDDEN)
    assert verdict(states, refused, committed) == Reject("forbidden", FORBIDDEN)


@pytest.mark.req("ORD-03", "ORD-04")
def test_what_is_known_is_answered_before_the_model_is_asked(states: States) -> None:
    first = candidate(["p"], push("a"))
    assert verdict(states, first) == Commit()
    again = verdict(states, first, first)
    assert again == Duplicate(RememberedId(7, first.hash, "somebody", 1234)), (
        "the model alone would refuse it"
    )
    other = verdict(states, candidate(["p"], push("b"), first.id), first)
    assert isinstance(other, Reject)
    assert (other.reason, [error.field for error in other.errors]) == ("validation_failed", ["event"])
    assert first.id in other.errors[0].message
    elsewhere = verdict(states, candidate(["p", "q"], push("a"), first.id), first)
    assert isinstance(elsewhere, Reject), "the partitions are part of the payload (ORD-06)"
    assert verdict(states, candidate(["p"], push("b"))) == Commit(), "the conflict pushed nothing"


@pytest.mark.req("VAL-01", "SUBMIT-08")
def test_what_the_model_refuses_changes_nothing_and_leaves_its_id_free(states: States) -> None:
    orphan = candidate(["p"], push("b", parent="a"))
    refused = verdict(states, orphan)
    assert isinstance(refused, Reject)
    assert [error.field for error in refused.errors] == ["event.payload.options.parent"]
    assert verdict(states, candidate(["p"], push("a"))) == Commit()
    assert verdict(states, orphan) == Commit()


@pytest.mark.req("VAL-05")
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["_root", "a", "b"])), max_size=12))
def test_the_same_state_and_items_give_the_same_verdicts(
    states: States, pushes: list[tuple[str, str]]
) -> None:
    items = [candidate(["p"], push(id, parent=parent)) for id, parent in pushes]
    first = [verdict(states, item) for item in items]
    states.rollback()
    assert [verdict(states, item) for item in items] == first
    states.rollback()


# -- through a running authority -----------------------------------------------------------------------------


@pytest.mark.req("ORD-03", "ORD-06")
def test_a_retry_gets_the_first_answer_and_is_not_told_to_anybody(tmp_path: Path) -> None:
    times = iter(range(1_000, 100_000, 1_000))
    with seated(tmp_path / "data", fronts=2, now_ms=lambda: next(times)) as seat:
        here, there = seat.fronts[0].connect(), seat.fronts[1].connect()
        event = {"type": "set", "payload": {"target": "x", "value": {"a": 1, "b": 2}}}
        respelt = {"payload": {"value": {"b": 2.0, "a": 1.0}, "target": "x"}, "type": "set"}
        first = candidate(["p", "q"], event)
        (answer,) = here.submit(first)
        assert (answer.status, answer.committed_id) == ("committed", 1)
        assert there.submit(candidate(["q", "p"], respelt, first.id)) == (answer,)
        assert here.submit(first) == (answer,)
        assert seat.fronts[1].head() == 1
        assert [one.committed_id for one in seat.fronts[1].committed()] == [1]
        assert seat.stats().counters["duplicates"] == 2
    with seated(tmp_path / "data") as seat:
        assert seat.front.connect().submit(first) == (answer,), "also after a restart (ORD-05)"
        assert seat.front.head() == 1


@pytest.mark.req("ORD-04", "ORD-05")
def test_inside_one_group_the_first_of_an_id_wins(seat: Seat[SqliteLog]) -> None:
    one, two, three = (seat.front.connect() for _ in range(3))
    event_id = new_id()
    same = candidate(["p"], put("x", 1), event_id)
    other = candidate(["p"], put("x", 2), event_id)
    seat.front.send(one.request(same), two.request(other), three.request(same))  # one frame, one group
    (committed,), (conflict,), (duplicate,) = one.results(), two.results(), three.results()
    assert (committed.status, committed.committed_id) == ("committed", 1)
    assert (conflict.status, conflict.reason) == ("rejected", "validation_failed")
    assert conflict.errors is not None
    assert [error.field for error in conflict.errors] == ["event"]
    assert duplicate == committed
    assert seat.front.head() == 1
    assert sum(seat.stats().histograms["group_events"].counts) == 1


@pytest.mark.req("SUBMIT-02", "SUBMIT-03", "SUBMIT-04")
def test_items_are_judged_on_what_the_items_before_them_left(seat: Seat[SqliteLog]) -> None:
    caller = seat.front.connect()
    results = caller.submit(
        candidate(["p"], push("a"), "1"),
        candidate(["p"], push("b", parent="a"), "2"),
        candidate(["p"], push("a"), "3"),
        RefusedItem("4", ("secret",), "forbidden", FORBIDDEN),
        candidate(["p"], push("c", parent="nobody"), "5"),
        candidate(["p"], push("c", parent="b"), "6"),
    )
    assert [(r.id, r.status, r.committed_id) for r in results] == [
        ("1", "committed", 1),
        ("2", "committed", 2),
        ("3", "rejected", None),
        ("4", "rejected", None),
        ("5", "rejected", None),
        ("6", "committed", 3),
    ]
    assert [r.reason for r in results] == [
        None,
        None,
        "validation_failed",
        "forbidden",
        "validation_failed",
        None,
    ]
    assert [r.errors and r.errors[0].field for r in results] == [
        None,
        None,
        "event.payload.value.id",
        "partitions.0",
        "event.payload.options.parent",
        None,
    ]


@pytest.mark.req("SUBMIT-08", "DUR-01")
def test_a_rejected_item_leaves_no_trace_and_may_come_again(seat: Seat[SqliteLog], tmp_path: Path) -> None:
    caller = seat.front.connect()
    orphan = candidate(["p"], push("b", parent="a"))
    assert caller.submit(orphan)[0].status == "rejected"
    assert seat.front.head() == 0
    assert caller.submit(candidate(["p"], push("a")), orphan)[1].committed_id == 2
    with reading(tmp_path / "data") as log:
        assert [record.id for record in log.scan(0, 10, limit=10)][1:] == [orphan.id]
    assert [one.committed_id for one in seat.front.committed()] == [1, 2]
    figures = seat.stats().counters
    assert (figures["commits"], figures["rejections|validation_failed"]) == (2, 1)


@pytest.mark.req("SUBMIT-06", "BCAST-05", "AUTH-06")
def test_one_event_is_answered_in_the_words_of_the_draft(seat: Seat[SqliteLog]) -> None:
    caller, other = seat.front.connect("alice"), seat.front.connect("bob")
    item = candidate(["p", "q"], put("x", 1), "e1")
    answers = [caller.submit_single(item), other.submit_single(item)]
    assert isinstance(answers[0], EventCommitted)
    assert isinstance(answers[1], SingleOutcome)
    assert answers[1].committed
    assert answers[0].payload == answers[1].payload
    assert msgspec.json.decode(answers[0].payload)["client_id"] == "alice", "whose event it is"

    refused = other.submit_single(candidate(["p"], push("b", parent="a"), "e2"))
    assert isinstance(refused, SingleOutcome)
    assert not refused.committed
    answer = msgspec.json.decode(refused.payload)
    assert answer["reason"] == "validation_failed"
    assert (answer["id"], answer["client_id"], answer["partitions"]) == ("e2", "bob", ["p"])
    assert [error["field"] for error in answer["errors"]] == ["event.payload.options.parent"]


@pytest.mark.req("ORD-03", "SUBMIT-10")
@pytest.mark.parametrize(
    "event_id", ["\x00", "a\x00b", '"', "\u2028", "é" * 64, "\U0001d518", "' OR 1=1 --", "\\"]
)
def test_strange_ids_are_known_again(seat: Seat[SqliteLog], event_id: str) -> None:
    caller = seat.front.connect()
    item = candidate(["p"], put("x", 1), event_id)
    assert caller.submit(item) == caller.submit(item)
    assert caller.submit(candidate(["p"], put("x", 2), event_id))[0].status == "rejected"
    assert seat.front.head() == 1
