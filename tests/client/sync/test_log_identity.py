"""The sync state machine when the server's log, or the content of its model, is another than before."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.sync.driving import Drive, asked, of, one, reports, stored
from unisono.client.sync.advance import Phase
from unisono.client.sync.inputs_effects import NoteLog, NoteModel, Received, Reset, Rewind, SubmitNext
from unisono.protocol.client_codec import VersionChanged
from unisono.vocabulary import LogIdentity

ONE: dict[str, Any] = {"log_id": "1" * 32, "log_epoch": 1}
LATER: dict[str, Any] = {"log_id": "1" * 32, "log_epoch": 2}
OTHER: dict[str, Any] = {"log_id": "2" * 32, "log_epoch": 1}
KNOWN = LogIdentity(**ONE)


@pytest.mark.req("DUR-08")
@pytest.mark.parametrize("now", [LATER, OTHER])
def test_another_log_in_connected_starts_everything_over(now: dict[str, Any]) -> None:
    """Although every cursor is below the head."""
    drive = Drive(cursors={"p": 5, "q": 3}, highest_cursors={"p": 5, "q": 3}, log=KNOWN, drafts_waiting=True)
    effects = drive.connect(head=90, **now)
    assert reports(effects) == ["log_changed"]
    assert one(Reset, effects).log == LogIdentity(**now)
    assert asked(effects) == (("p", "q"), 0)
    assert drive.state.highest_cursors == {}
    effects = drive.page(1, 90, to=90, **now)
    assert (reports(effects), drive.phase()) == ([], Phase.LIVE)
    assert of(SubmitNext, effects), "drafts are kept, and go out"


@pytest.mark.req("DUR-08")
def test_another_log_in_a_page_starts_everything_over_and_the_page_is_not_taken() -> None:
    drive = Drive(cursors={"p": 5}, log=KNOWN)
    drive.connect(head=9, **ONE)
    drive.broadcast(12)
    effects = drive.page(6, 9, to=9, more=True, **LATER)
    assert reports(effects) == ["log_changed"]
    assert one(Reset, effects).log == LogIdentity(**LATER)
    assert stored(effects) == []
    assert asked(effects) == (("p",), 0)
    effects = drive.page(1, to=9, **LATER)
    assert stored(effects) == [1], "nor what was heard before"
    assert drive.phase() is Phase.LIVE


@pytest.mark.req("DUR-08")
def test_the_first_log_is_noted_and_a_server_that_names_none_is_believed() -> None:
    drive = Drive(cursors={"p": 5})
    effects = drive.connect(head=9, **ONE)
    assert one(NoteLog, effects).log == KNOWN
    assert not of(Reset, effects)
    assert asked(effects) == (("p",), 5)
    drive = Drive(cursors={"p": 5}, log=KNOWN)
    effects = drive.connect(head=9)
    assert not of(Reset, effects)
    effects = drive.page(6, 9, to=9)
    assert (reports(effects), drive.state.log) == ([], KNOWN)


@pytest.mark.req("DUR-07", "CLIENT-10")
def test_another_content_of_the_same_version_is_another_model() -> None:
    drive = Drive(cursors={"p": 5}, model_version=1, model_digest="a")
    effects = drive.connect(head=9, model_version=1, model_digest="b")
    assert reports(effects) == ["model_changed"]
    assert one(Rewind, effects) == Rewind(1, "b")
    assert asked(effects) == (("p",), 0)
    drive.page(9, to=9, model_version=1, model_digest="b")
    assert drive.phase() is Phase.LIVE


@pytest.mark.req("DUR-07", "CLIENT-10")
def test_the_content_of_a_new_version_comes_with_its_first_page() -> None:
    drive = Drive(cursors={"p": 0})
    drive.live(to=3, model_version=1, model_digest="a")
    effects = drive.feed(Received(VersionChanged(2, 1)))
    assert one(Rewind, effects) == Rewind(2)
    effects = drive.page(1, 3, to=3, model_version=2, model_digest="b")
    assert one(NoteModel, effects) == NoteModel(2, "b")
    assert stored(effects) == [1, 3]
    assert drive.state.model_digest == "b"


@pytest.mark.req("DUR-07")
def test_a_server_that_tells_no_digest_is_believed_by_its_version() -> None:
    drive = Drive(cursors={"p": 5}, model_version=1, model_digest="a")
    effects = drive.connect(head=9, model_version=1)
    assert reports(effects) == []
    assert asked(effects) == (("p",), 5)
