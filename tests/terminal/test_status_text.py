"""What the screen says in words."""

from __future__ import annotations

from typing import Any

import msgspec

from unisono.client import Phase, Problem, Rejected, Status
from unisono.display import blank_controls
from unisono.terminal import edits
from unisono.terminal.outline import read
from unisono.terminal.status_text import rejection, status_line, wish
from unisono.vocabulary import FieldError, JsonObject

OUTLINE = read(
    {
        "outline": {
            "items": {"a": {"title": "milk"}, "b": {"title": "x" * 50}},
            "tree": [{"id": "a", "children": []}, {"id": "b", "children": []}],
        }
    },
    "outline",
)
STATUS = Status(
    phase=Phase.LIVE,
    cursor=7,
    cursors={"p": 7},
    pending=0,
    rejected=0,
    set_aside={},
    model_version=None,
    last_error=None,
    stopped=None,
)


def said(paused: bool = False, **changes: Any) -> str:
    return status_line(msgspec.structs.replace(STATUS, **changes), "p", paused).plain


def test_the_status_line() -> None:
    assert said() == "● live   cursor 7   0 pending"
    assert said(pending=2, rejected=1) == "● live   cursor 7   2 pending   1 rejected"
    assert said(pending=2, drafts_set_aside={"a": "no"}) == "● live   cursor 7   2 pending   1 set aside"
    assert said(phase=Phase.SYNCING, cursors={}) == "● syncing   cursor 0   0 pending"
    assert said(paused=True, phase=Phase.OFFLINE).startswith("● offline on purpose, o goes online   cursor 7")


def test_trouble_has_a_line_of_its_own() -> None:
    problem = Problem("unreachable", "nobody\nlistens", 0)
    assert said(last_error=problem).endswith(" unreachable: nobody listens")
    assert "\nlast error " in said(last_error=problem)
    aside = said(last_error=problem, set_aside={"p": "forbidden"})
    assert aside.endswith("\nthe server refuses this partition: forbidden")
    stopped = said(phase=Phase.OFFLINE, last_error=problem, stopped="another one took over")
    assert stopped.endswith("\nstopped: another one took over; o tries again")


def test_nobody_else_commands_this_terminal() -> None:
    assert blank_controls("a\x1b[2Jb\nc\x07\u202ed\u2028e\ud800f\x9bg") == "a [2Jb c  d e f g"
    joined = "\U0001f468\u200d\U0001f469 e\u0301 日本 \U0001f600"
    assert blank_controls(joined) == joined


def test_what_an_event_wants() -> None:
    gone: JsonObject = {"type": "treeDelete", "payload": {"target": "outline", "options": {"id": "zz"}}}
    other: JsonObject = {"type": "treeUpdate", "payload": {"target": "outline", "options": {"id": "a"}}}
    told: dict[str, JsonObject | None] = {
        "add “tea”": edits.add_after(OUTLINE, "a", "n", "tea"),
        "rename “milk” to “oats”": edits.rename(OUTLINE, "a", "oats"),
        "move “milk”": edits.move_down(OUTLINE, "a"),
        f"delete “{'x' * 39}…”": edits.delete(OUTLINE, "b"),
        "delete an item that is gone": gone,
        "change “milk”": other,
        "set settings.theme": {"type": "set", "payload": {"target": "settings.theme"}},
        "event": {"type": "event", "payload": {"schema": "s"}},
        "None": {},
    }
    for words, event in told.items():
        assert event is not None
        assert wish(event, OUTLINE) == words


def test_a_rejection_gives_every_reason() -> None:
    event = edits.add_after(OUTLINE, "a", "n", "tea\x1b")
    errors = (FieldError("event.payload.value", "is\nwrong"), FieldError("event.type", "too"))
    rejected = Rejected("1", ("p",), event, "validation_failed", errors, 0)
    assert rejection(rejected, OUTLINE).plain.split("\n") == [
        "add “tea ”  validation_failed",
        "  event.payload.value: is wrong",
        "  event.type: too",
    ]
