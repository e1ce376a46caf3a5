"""What the authority remembers of its last work: bounded, and one example of each kind of refusal."""

from __future__ import annotations

from unisono.authority.judge import Reject
from unisono.authority.recent_activity import (
    EXAMPLE_CHARS_MAX,
    GROUPS_KEPT,
    GROUPS_TOLD,
    REFUSALS_KEPT,
    RecentActivity,
    RecentGroup,
)
from unisono.ipc.messages import Candidate, RefusedItem, Submit
from unisono.vocabulary import FieldError


def refuse(
    recent: RecentActivity, field: str, message: str, *, now: int = 0, id: str = "e", event: bytes = b"{}"
) -> None:
    item = Candidate(id, ("p",), event, b"")
    submit = Submit(1, "ann", "canonical", False, (item,), len(event))
    recent.note_refusal(submit, item, Reject("validation_failed", (FieldError(field, message),)), now)


def test_refusals_that_differ_in_ids_and_numbers_are_one_kind() -> None:
    recent = RecentActivity()
    for number in range(50):
        refuse(recent, f"event.payload.items.{number}", f"id 'x{number}' is taken", now=number)
    (kind,) = recent.refusals()
    assert (kind.count, kind.first_ms, kind.last_ms) == (50, 0, 49)
    assert kind.message == "id … is taken"
    refuse(recent, "event.payload.items.7", "id 'y' is taken", now=5_000, id="newest")
    assert recent.refusals()[0].example["id"] == "newest"


def test_kinds_of_refusals_and_their_examples_are_bounded() -> None:
    recent = RecentActivity()
    fields = [f"event.{'f' * (number % 20)}{'g' * (number // 20)}" for number in range(2 * REFUSALS_KEPT)]
    for field in fields:
        refuse(recent, field, "wrong", event=b'"' + b"x" * 1_000_000 + b'"')
    found = recent.refusals()
    assert len(found) == REFUSALS_KEPT
    assert [kind.field for kind in found] == fields[: REFUSALS_KEPT - 1 : -1]
    assert all(len(str(kind.example["event"])) <= EXAMPLE_CHARS_MAX for kind in found)


def test_an_item_refused_by_a_front_has_no_content() -> None:
    recent = RecentActivity()
    item = RefusedItem("e", ("p",), "forbidden", ())
    submit = Submit(1, "ann", "canonical", True, (item,), 0)
    recent.note_refusal(submit, item, Reject("forbidden", ()), 3)
    (kind,) = recent.refusals()
    assert (kind.reason, kind.field, kind.example["event"]) == ("forbidden", "", None)


def test_groups_are_those_after_an_id_and_bounded() -> None:
    recent = RecentActivity()
    for number in range(1, 2 * GROUPS_KEPT):
        recent.note_group(RecentGroup(2 * number, 2 * number + 1, 0, 0.0, 0.0, 0.0))
    newest = 4 * GROUPS_KEPT - 1
    assert [(group.first, group.last) for group in recent.groups(newest - 2)] == [(newest - 1, newest)]
    assert [group.last for group in recent.groups(0)] == list(
        range(newest - 2 * GROUPS_TOLD + 2, newest + 1, 2)
    )
    assert recent.groups(newest) == []
