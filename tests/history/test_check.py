"""Each invariant of a history, kept and broken."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.history.story import Story, event_of, sound
from tests.history.test_check_sound import finish
from unisono.history.findings import INVARIANTS
from unisono.history.records import (
    AccessScope,
    ClientCursor,
    ClientStore,
    LakeEvent,
    LogEvent,
    LogRead,
    ScopeChanged,
    SnapshotRead,
)


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
def a_broadcast_after_access_was_revoked(story: Story) -> None:
    story.connect("c1")
    story.sync("c1", 5, ["p", "q"], subscribe=True)
    story.page("c1", [], 5, subscriptions=["p", "q"])
    story.revoke("c1", "q")
    story.commit("a2", "n6", 6, ["q"])
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


def reader_of_p(story: Story) -> None:
    """A client that may read p alone, and does."""
    story.connect("c1", scope=AccessScope(readable_partitions=("p",)))
    story.sync("c1")
    story.page("c1", [1, 2, 4, 5], 5)


@breaking("H8")
def a_commit_of_one_who_may_only_read(story: Story) -> None:
    reader_of_p(story)
    story.commit("c1", "n6", 6)
    finish(story)


@breaking("H8")
def a_page_after_the_acl_took_the_partition_away(story: Story) -> None:
    reader_of_p(story)
    story.add(ScopeChanged(story.tick(), "c1", AccessScope(("z",))))
    story.sync("c1")
    story.page("c1", [1, 2, 4, 5], 5)


@breaking("H8")
def a_page_after_a_kick(story: Story) -> None:
    reader_of_p(story)
    story.add(ScopeChanged(story.tick(), "c1"))
    story.sync("c1")
    story.page("c1", [1, 2, 4, 5], 5)


@breaking("H8")
def a_connection_that_should_have_been_refused(story: Story) -> None:
    reader_of_p(story)
    story.add(ScopeChanged(story.tick(), "c1", until=story.now + 100))
    story.connect("c2", "c1", scope=AccessScope(("p",)))
    story.sync("c2")
    story.page("c2", [1, 2, 4, 5], 5)


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


@breaking("H13")
def a_part_of_an_atomic_batch(story: Story) -> None:
    story.submit("b1", "e10", "e11", atomic=True)
    story.ids[6] = "e10"
    finish(story)


@breaking("H13")
def an_atomic_batch_in_two_places(story: Story) -> None:
    story.connect("b2", "b", extensions=["atomic"])
    story.submit("b2", "e10", "e11", atomic=True)
    story.submit("a2", "e12")
    story.result("b2", {"e10": 6, "e11": 8})
    story.result("a2", {"e12": 7})
    finish(story)


def test_an_atomic_batch_in_one_piece_and_one_of_a_connection_without_the_extension() -> None:
    story = sound()
    story.submit("b1", "e10", "e11", atomic=True)
    story.result("b1", {"e10": 6, "e11": 7})
    story.submit("a2", "e12", "e13", atomic=True)
    story.result("a2", {"e12": 8, "e13": None})
    finish(story)
    assert story.broken() == set()


def test_a_batch_whose_ids_were_also_sent_apart_is_not_judged() -> None:
    story = sound()
    story.commit("a2", "e10", 6)
    story.submit("b1", "e10", "e11", atomic=True)
    story.result("b1", {"e10": 6, "e11": None})
    finish(story)
    assert story.broken() == set()


@pytest.mark.parametrize(("invariant", "name", "change"), BREAKS, ids=[name for _, name, _ in BREAKS])
def test_a_broken_invariant_is_found(invariant: str, name: str, change: Break) -> None:
    story = sound()
    change(story)
    assert invariant in story.broken()
    if invariant != "H1":  # one id for two events breaks much else
        assert story.broken() <= {invariant, "H6", "H2"} | ({"H1"} if "twice_in_the_log" in name else set())


@pytest.mark.req("AUTHZ-09", "AUTH-11")
def test_what_access_allows_at_the_time_is_no_finding() -> None:
    story = sound()
    reader_of_p(story)
    story.add(ScopeChanged(story.now, "c1"))  # a kick; the last page was on its way
    story.add(ScopeChanged(story.tick(), "c1", until=story.now + 1))
    story.tick()
    story.connect("c2", "c1", scope=AccessScope(("z",)))
    story.add(ScopeChanged(story.tick(), "c1", AccessScope(("p", "q"))))  # it may more than its token said
    story.tick()
    story.sync("c2")
    story.page("c2", [1, 2, 4, 5], 5)
    finish(story)
    assert "H8" not in story.broken()


def test_findings_name_the_record() -> None:
    story = sound()
    an_echo(story)
    assert [(each.text, each.where) for each in story.verdict().findings()] == [
        ("b1: the broadcast 4 comes after 5", f"line {len(story.records)}"),
        ("b1: its own event 4 was broadcast to it", f"line {len(story.records)}"),
    ]
