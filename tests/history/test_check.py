"""Each invariant of a history, kept and broken."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.history.story import Story, event_of
from unisono.history.findings import INVARIANTS
from unisono.history.records import (
    AccessScope,
    ClientCursor,
    ClientStore,
    HistoryUnreadable,
    LakeEvent,
    LogEvent,
    LogRead,
    Operation,
    SnapshotRead,
)


def sound() -> Story:
    """Two clients that submit, are told and catch up; in the end everything is in log and lake."""
    story = Story()
    story.connect("a1", "a", scope=AccessScope(("p", "q")), expires_at=500.0)
    story.connect("b1", "b", scope=AccessScope((), ("p",)))
    story.sync("b1", subscribe=True)
    story.page("b1", [], 0, subscriptions=["p"])
    story.submit("a1", "e1", "e2", "e3")
    story.result("a1", {"e1": 1, "e2": None, "e3": 2})
    story.broadcast("b1", 1)
    story.broadcast("b1", 2)
    story.commit("a1", "e4", 3, ["q"])
    story.commit("b1", "e5", 4)
    story.commit("a1", "e6", 5, ["p", "q"])
    story.broadcast("b1", 5)
    story.connect("a2", "a")
    story.sync("a2", 1, ["p", "q"])
    story.page("a2", [2, 3], 5, next_since=3)
    story.sync("a2", 3, ["p", "q"])
    story.page("a2", [4, 5], 5)
    story.add(ClientCursor(story.tick(), "b", 4))
    story.add(ClientCursor(story.tick(), "b", 5))
    story.log()
    story.lake([1, 2, 3], 3)
    story.add(SnapshotRead("p", 2, "same", "same"))
    for client in ("b", "c"):
        story.add(
            ClientStore(client, ("p",), 5, ((1, "e1"), (2, "e3"), (4, "e5"), (5, "e6")), ("e9",), state="s")
        )
    return story


def test_a_sound_history_has_no_finding_and_every_invariant_was_applied() -> None:
    verdict = sound().verdict()
    assert list(verdict.findings()) == []
    assert verdict.sound
    assert {check.invariant for check in verdict.checks if check.checked} == set(INVARIANTS)


def test_nothing_recorded_is_nothing_checked() -> None:
    verdict = Story().verdict()
    assert not any(check.checked for check in verdict.checks)


Break = Callable[[Story], None]
BREAKS: list[tuple[str, str, Break]] = []


def breaking(invariant: str) -> Callable[[Break], Break]:
    def remember(function: Break) -> Break:
        BREAKS.append((invariant, function.__name__, function))
        return function

    return remember


@breaking("H1")
def one_id_with_two_numbers(story: Story) -> None:
    story.connect("c1")
    story.ids[6] = "e6"
    story.partitions["e6"] = ["p", "q"]
    story.sync("c1", 5, ["q"], subscribe=True)
    story.page("c1", [], 5, subscriptions=["q"])
    story.broadcast("c1", 6)


@breaking("H1")
def one_number_for_two_ids(story: Story) -> None:
    story.commit("a2", "other", 5)


@breaking("H1")
def two_contents_of_one_event(story: Story) -> None:
    story.sync("a2", 4, ["p", "q"])
    story.frame(
        "a2",
        "received",
        "sync_response",
        {
            "events": [story.event(5, event=event_of("changed"))],
            "next_since_committed_id": 5,
            "sync_to_committed_id": 5,
            "has_more": False,
        },
    )


@breaking("H2")
def an_acknowledged_event_is_gone(story: Story) -> None:
    story.records = [
        each for each in story.records if not (isinstance(each, LogEvent) and each.committed_id == 4)
    ]


@breaking("H3")
def a_rejected_event_is_in_the_log(story: Story) -> None:
    story.add(LogEvent(6, "e2", ("p",)))
    story.add(LogRead(6))


@breaking("H3")
def an_event_that_nobody_sent(story: Story) -> None:
    story.add(LogEvent(6, "ghost", ("z",)))
    story.add(LogRead(6))


@breaking("H3")
def an_event_twice_in_the_log(story: Story) -> None:
    story.add(LogEvent(6, "e6", ("z",)))
    story.add(LogRead(6))


@breaking("H4")
def a_batch_out_of_order(story: Story) -> None:
    story.submit("a2", "x", "y", partitions=["z"])
    story.result("a2", {"x": 7, "y": 6})
    for number in (6, 7):
        (stored,) = story.stored([number])
        story.add(LogEvent(number, stored.id, stored.partitions, stored.hash))


@breaking("H5")
def a_stale_watermark(story: Story) -> None:
    story.connect("c1")
    story.sync("c1", 0, ["q"])
    story.page("c1", [3], 4)


@breaking("H6")
def a_page_one_short(story: Story) -> None:
    story.connect("c1")
    story.sync("c1")
    story.page("c1", [1, 2, 4], 5)


@breaking("H6")
def a_page_with_too_much(story: Story) -> None:
    story.connect("c1")
    story.sync("c1")
    story.page("c1", [1, 2, 3, 4, 5], 5)


@breaking("H6")
def a_page_out_of_order(story: Story) -> None:
    story.connect("c1")
    story.sync("c1")
    story.page("c1", [2, 1, 4, 5], 5)


@breaking("H6")
def a_cursor_that_skips(story: Story) -> None:
    story.connect("c1")
    story.sync("c1")
    story.page("c1", [1, 2], 5, next_since=4)


@breaking("H6")
def a_snapshot_that_hides_later_events(story: Story) -> None:
    story.connect("c1")
    story.sync("c1")
    story.page("c1", [5], 5, snapshots={"p": 2})


@breaking("H7")
def a_lost_broadcast(story: Story) -> None:
    story.connect("c1")
    story.sync("c1", 5, subscribe=True)
    story.page("c1", [], 5, subscriptions=["p"])
    for number in (6, 7):
        story.commit("a2", f"n{number}", number)
    story.broadcast("c1", 7)
    finish(story)


@breaking("H7")
def a_lost_broadcast_at_the_seam(story: Story) -> None:
    story.connect("c1")
    story.sync("c1", 0, ["q"], subscribe=True)
    story.page("c1", [3, 5], 5, subscriptions=["q"])
    story.sync("c1", 5, ["p"], subscribe=True)
    story.page("c1", [], 5, subscriptions=["p"])
    for number in (6, 7):
        story.commit("a2", f"n{number}", number)
    story.broadcast("c1", 7)
    finish(story)


@breaking("H7")
def broadcasts_out_of_order(story: Story) -> None:
    story.connect("c1")
    story.sync("c1", 5, subscribe=True)
    story.page("c1", [], 5, subscriptions=["p"])
    for number in (6, 7):
        story.commit("a2", f"n{number}", number)
    story.broadcast("c1", 7)
    story.broadcast("c1", 6)
    finish(story)


@breaking("H7")
def an_echo(story: Story) -> None:
    story.broadcast("b1", 4)


@breaking("H7")
def a_broadcast_that_was_not_subscribed_to(story: Story) -> None:
    story.connect("c1")
    story.sync("c1", 5, subscribe=True)
    story.page("c1", [], 5, subscriptions=["p"])
    story.commit("a2", "n6", 6, ["q"])
    story.broadcast("c1", 6)
    finish(story)


@breaking("H8")
def an_event_of_a_partition_out_of_scope(story: Story) -> None:
    story.connect("c1", scope=AccessScope(("z",)))
    story.sync("c1")
    story.page("c1", [1, 2, 4, 5], 5)


@breaking("H8")
def a_commit_partly_out_of_scope(story: Story) -> None:
    story.connect("c1", scope=AccessScope(("p",)))
    story.commit("c1", "n6", 6, ["p", "q"])
    finish(story)


@breaking("H8")
def a_delivery_after_the_token_had_expired(story: Story) -> None:
    story.connect("c1", expires_at=story.now)
    story.sync("c1")
    story.page("c1", [1, 2, 4, 5], 5)


@breaking("H10")
def success_on_a_superseded_connection(story: Story) -> None:
    story.commit("a1", "n6", 6)
    finish(story)


@breaking("H11")
def the_lake_lacks_an_event(story: Story) -> None:
    story.records = [
        each for each in story.records if not (isinstance(each, LakeEvent) and each.committed_id == 2)
    ]


@breaking("H11")
def the_lake_has_an_event_twice(story: Story) -> None:
    story.lake([2], 3)


@breaking("H11")
def a_snapshot_that_is_no_replay(story: Story) -> None:
    story.add(SnapshotRead("p", 4, "one", "other"))


@breaking("H12")
def a_store_that_lacks_an_event(story: Story) -> None:
    story.add(ClientStore("d", ("p",), 5, ((1, "e1"), (4, "e5"), (5, "e6"))))


@breaking("H12")
def a_draft_that_is_committed(story: Story) -> None:
    story.add(ClientStore("d", ("q",), 5, ((3, "e4"), (5, "e6")), ("e4",)))


@breaking("H12")
def a_cursor_that_goes_back(story: Story) -> None:
    story.add(ClientCursor(story.tick(), "b", 3))


@breaking("H12")
def stores_that_differ(story: Story) -> None:
    story.add(ClientStore("d", ("p",), 5, ((1, "e1"), (2, "e3"), (4, "e5"), (5, "e6")), state="another"))


def finish(story: Story) -> None:
    """Put what was committed after the final read into it."""
    there = {each.committed_id for each in story.records if isinstance(each, LogEvent)}
    for each in story.stored():
        if each.committed_id not in there:
            story.add(LogEvent(each.committed_id, each.id, each.partitions, each.hash))
    story.add(LogRead(max(story.ids)))


@pytest.mark.parametrize(("invariant", "name", "change"), BREAKS, ids=[name for _, name, _ in BREAKS])
def test_a_broken_invariant_is_found(invariant: str, name: str, change: Break) -> None:
    story = sound()
    change(story)
    assert invariant in story.broken()
    if invariant != "H1":  # one id for two events breaks much else
        assert story.broken() <= {invariant, "H6", "H2"} | ({"H1"} if "twice_in_the_log" in name else set())


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


def test_findings_name_the_record() -> None:
    story = sound()
    an_echo(story)
    assert [(each.text, each.where) for each in story.verdict().findings()] == [
        ("b1: the broadcast 4 comes after 5", f"line {len(story.records)}"),
        ("b1: its own event 4 was broadcast to it", f"line {len(story.records)}"),
    ]


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
