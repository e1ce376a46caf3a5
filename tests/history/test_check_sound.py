"""Histories that look wrong and are sound, and findings that need a history of their own."""

from __future__ import annotations

import msgspec
import pytest

from tests.history.story import Story, event_of, sound
from unisono.history.check import check_history
from unisono.history.records import HistoryUnreadable, Located, LogEvent, LogRead, Operation


def finish(story: Story) -> None:
    """Put what was committed after the final read into it."""
    there = {each.committed_id for each in story.records if isinstance(each, LogEvent)}
    for each in story.stored():
        if each.committed_id not in there:
            story.add(LogEvent(each.committed_id, each.id, each.partitions, each.hash))
    story.add(LogRead(max(story.ids)))


def test_a_number_below_what_was_seen_before_is_found() -> None:
    story = Story()
    story.connect("a1", "a")
    story.commit("a1", "e1", 2)
    story.commit("a1", "e2", 1)
    story.log()
    assert story.broken() == {"H4"}


def test_own_events_missing_in_the_first_sync_are_found() -> None:
    story = sound()
    story.connect("a3", "a")
    story.sync("a3", 2, ["q"])
    story.page("a3", [5], 5)
    assert story.broken() == {"H6", "H9"}


def test_an_unknown_outcome_may_be_either() -> None:
    story = sound()
    story.submit("a2", "unanswered")
    assert story.broken() == set()
    story.ids[6] = "unanswered"
    finish(story)
    assert story.broken() == set()


def test_a_retry_on_another_connection_is_no_echo_and_no_hole() -> None:
    for told in (True, False):
        story = sound()
        story.submit("b1", "again")
        story.connect("b2", "b")
        story.sync("b2", 5, subscribe=True)
        story.page("b2", [], 5, subscriptions=["p"])
        story.commit("b2", "again", 6)
        story.commit("a2", "next", 7)
        if told:
            story.broadcast("b2", 6)
        story.broadcast("b2", 7)
        finish(story)
        assert story.broken() == set()


def test_an_id_that_was_rejected_may_be_committed_later() -> None:
    story = sound()
    story.commit("a2", "e2", 6)
    finish(story)
    assert story.broken() == set()


def test_events_pruned_from_the_log_count_when_the_lake_has_them() -> None:
    story = Story()
    story.connect("a1", "a")
    for number in (1, 2, 3):
        story.commit("a1", f"e{number}", number)
    story.log(pruned_to=2)
    unread = story.verdict()
    assert next(check for check in unread.checks if check.invariant == "H2").checked == 0
    story.lake([1, 2], 2)
    assert story.broken() == set()
    assert next(check for check in story.verdict().checks if check.invariant == "H2").checked == 3


def test_a_sync_that_is_refused_does_not_shift_the_others() -> None:
    story = sound()
    story.sync("a2", 0, ["secret"])
    story.frame("a2", "received", "error", {"code": "forbidden", "message": "…"})
    story.sync("a2", 3, ["q"])
    story.page("a2", [5], 5)
    assert story.broken() == set()


def test_an_error_that_answers_a_submission_is_not_taken_for_another() -> None:
    story = sound()
    story.submit("a2", "same", partitions=["z"])
    story.frame("a2", "received", "error", {"code": "bad_request", "message": "…"})
    story.commit("a2", "same", 6, ["p"])
    finish(story)
    assert story.broken() == set()


def test_a_connection_does_not_take_itself_over() -> None:
    story = sound()
    story.frame("a2", "sent", "connect", {"token": "…", "client_id": "a"})
    story.frame("a2", "received", "error", {"code": "bad_request", "message": "already connected"})
    story.commit("a2", "e7", 6)
    finish(story)
    assert story.broken() == set()


def test_operations_count_without_frames() -> None:
    story = sound()
    at = story.tick()
    story.add(Operation(at, "robot", "o1", "invoked"))
    story.add(Operation(story.tick(), "robot", "o1", "ok", 6))
    assert story.broken() == {"H2"}
    story.ids[6], story.partitions["o1"] = "o1", ["z"]
    finish(story)
    assert story.broken() == set()


def test_frames_that_are_no_messages_are_passed_over() -> None:
    story = sound()
    frame = next(each for each in story.records if type(each).__name__ == "Frame")
    for message in (b'"not json"', b"7", b'{"type":"sync"}', b'{"type":"submit_events","payload":7}'):
        story.add(msgspec.structs.replace(frame, message=msgspec.Raw(message)))
    assert story.broken() == set()


def test_two_epochs_of_a_log_are_two_histories() -> None:
    story = sound()
    story.connect("c1", epoch=2)
    with pytest.raises(HistoryUnreadable, match="each by itself"):
        story.verdict()


def test_an_id_that_is_sent_again_with_other_content_before_it_is_answered() -> None:
    story = sound()
    story.partitions["e7"], story.ids[6] = ["p"], "e7"
    for text in ("e7", "other"):
        sent = {"id": "e7", "partitions": ["p"], "event": event_of(text)}
        story.frame("a2", "sent", "submit_event", sent)
    story.frame("a2", "received", "event_committed", story.event(6))
    story.frame("a2", "received", "event_rejected", {"id": "e7", "reason": "validation_failed", "errors": []})
    story.log()
    assert story.broken() == set()


def test_an_error_may_overtake_the_answer_to_an_earlier_sync() -> None:
    story = sound()
    story.sync("a2", 0)
    story.sync("a2", 0, [""])
    story.frame("a2", "received", "error", {"code": "bad_request", "message": "…"})
    story.page("a2", [1, 2, 4, 5], 5)
    assert story.broken() == set()


@pytest.mark.parametrize("code", ["server_error", "auth_failed"])
def test_a_sync_that_was_not_answered_may_have_set_its_subscriptions(code: str) -> None:
    story = sound()
    story.connect("c9", "c")
    story.sync("c9", 5, subscribe=True)
    story.commit("a2", "e7", 6)
    story.broadcast("c9", 6)
    story.frame("c9", "received", "error", {"code": code, "message": "…"})
    finish(story)
    assert story.broken() == set()


def test_epochs_are_one_history_where_the_past_is_the_same() -> None:
    story = sound()
    story.connect("c9", "c", epoch=2)
    with pytest.raises(HistoryUnreadable):
        story.verdict()
    located = [Located(str(number), record) for number, record in enumerate(story.records)]
    assert check_history(located, same_past=True).sound


@pytest.mark.req("AUTHZ-09")
def test_what_was_revoked_is_not_missed() -> None:
    story = sound()
    head = max(story.ids)
    story.connect("c9")
    story.sync("c9", head, ["p", "q"], subscribe=True)
    story.page("c9", [], head, subscriptions=["p", "q"])
    story.connect("a9", "a9")
    story.commit("a9", "r1", head + 1, ["q"])
    story.broadcast("c9", head + 1)
    story.revoke("c9", "q")
    story.commit("a9", "r2", head + 2, ["q"])
    story.commit("a9", "r3", head + 3, ["p"])
    story.broadcast("c9", head + 3)
    assert "H7" not in story.broken()
