"""Another log, another content of an id, another model: what the client drops, and what it fetches again."""

from __future__ import annotations

import pytest

from tests.client.sync.driving import Drive, asked, of, one, reports, stored
from unisono.client.sync.advance import Phase
from unisono.client.sync.inputs_effects import NoteModel, Received, Reset, Rewind, SendSync
from unisono.protocol.client_codec import VersionChanged


@pytest.mark.req("CLIENT-11")
def test_a_cursor_ahead_of_the_server_is_reported_and_everything_fetched_anew() -> None:
    drive = Drive(cursors={"p": 50, "q": 40})
    drive.connect(head=7)
    effects = drive.page(to=7)
    assert reports(effects) == ["cursor_ahead"]
    assert of(Reset, effects)
    assert asked(effects) == (("p", "q"), 0)
    drive.page(1, 7, to=7)
    assert drive.phase() is Phase.LIVE
    assert drive.state.cursors == {"p": 7, "q": 7}


@pytest.mark.req("CLIENT-11")
def test_a_server_with_less_than_was_had_is_found_out_also_after_a_change_of_model() -> None:
    drive = Drive(cursors={"p": 9}, highest_cursors={"p": 9}, model_version=1)
    assert asked(drive.connect(head=4, model_version=2)) == (("p",), 0)
    effects = drive.page(1, 4, to=4)
    assert reports(effects) == ["cursor_ahead"]
    assert of(Reset, effects)
    drive.page(1, 4, to=4)
    assert drive.phase() is Phase.LIVE


@pytest.mark.req("CLIENT-12")
def test_an_id_clash_is_reported_and_everything_fetched_anew() -> None:
    drive = Drive()
    drive.live(to=3)
    drive.clash = "event 'x' came as 4, but 'y' is stored as 4"
    effects = drive.broadcast(4, id="x")
    assert reports(effects) == ["integrity_violation"]
    assert of(Reset, effects)
    assert asked(effects) == (("p",), 0)
    assert drive.state.cursors == {"p": 0}


@pytest.mark.req("CLIENT-12")
def test_a_clash_in_a_page_asks_for_nothing_but_the_beginning() -> None:
    drive = Drive(cursors={"p": 5})
    drive.connect()
    drive.clash = "contradiction"
    effects = drive.page(6, 7, to=20, more=True)
    assert asked(effects) == (("p",), 0)


@pytest.mark.req("CLIENT-12", "CLIENT-07")
def test_a_clash_while_a_sync_is_unanswered_lets_that_answer_pass() -> None:
    drive = Drive()
    drive.connect()
    drive.page(1, to=10, more=True)
    drive.clash = "contradiction"
    effects = drive.broadcast(5)
    assert of(Reset, effects)
    assert not of(SendSync, effects)
    effects = drive.page(6, 10, to=10)
    assert stored(effects) == [], "the page belongs to a past that was dropped"
    assert asked(effects) == (("p",), 0)


@pytest.mark.req("CLIENT-10")
def test_version_changed_drops_snapshots_and_syncs_everything_from_0() -> None:
    drive = Drive(cursors={"p": 0, "q": 0})
    drive.live(to=9, model_version=3)
    effects = drive.feed(Received(VersionChanged(4, 3)))
    assert one(Rewind, effects).version == 4
    assert not of(Reset, effects), "the events are kept"
    assert asked(effects) == (("p", "q"), 0)
    drive.page(to=9)
    assert drive.state.cursors == {"p": 9, "q": 9}


@pytest.mark.req("CLIENT-10")
def test_version_changed_during_a_cycle_makes_its_answer_void() -> None:
    drive = Drive()
    drive.connect(model_version=3)
    drive.page(1, to=9, more=True)
    drive.feed(Received(VersionChanged(4, 3)))
    effects = drive.page(2, to=9, more=True)
    assert stored(effects) == []
    assert asked(effects) == (("p",), 0)


@pytest.mark.req("CLIENT-10")
@pytest.mark.parametrize(("known", "told", "again"), [(3, 3, False), (3, 4, True), (None, 4, True)])
def test_another_model_version_at_connect(known: int | None, told: int, again: bool) -> None:
    drive = Drive(cursors={"p": 9}, model_version=known)
    effects = drive.connect(head=9, model_version=told)
    assert bool(of(Rewind, effects)) is again
    assert asked(effects) == (("p",), 0 if again else 9)


@pytest.mark.req("CLIENT-10")
def test_the_first_model_version_ever_heard_is_no_change() -> None:
    drive = Drive(cursors={"p": 9})
    effects = drive.connect(head=9, model_version=4)
    assert one(NoteModel, effects).version == 4
    assert asked(effects) == (("p",), 9)


@pytest.mark.req("CLIENT-10")
def test_another_model_version_in_a_page() -> None:
    drive = Drive()
    drive.connect(model_version=3)
    effects = drive.page(1, to=9, more=True, model_version=4)
    assert one(Rewind, effects).version == 4
    assert asked(effects) == (("p",), 0)
