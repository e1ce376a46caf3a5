"""What the events of an outline do.

The state of a partition grows to this:

    {"title": "Shopping", "notes": {"n1": {"text": "milk", "tags": ["today"]}}}
"""

from __future__ import annotations

from typing import Any

from unisono.model.rules import Compensating, Event, FieldError, Rules, compensate, refuse

rules = Rules()


# Checks come first. The JSON Schema has already been satisfied, so `event.data["id"]` is there.


@rules.check("note.added")
def note_is_new(state: dict[str, Any], event: Event) -> list[FieldError]:
    if event.data["id"] in state.get("notes", {}):
        return [refuse("id", "there is already a note of this id")]
    return []


@rules.check("note.edited", "note.removed")
def note_exists(state: dict[str, Any], event: Event) -> list[FieldError]:
    if event.data["id"] not in state.get("notes", {}):
        return [refuse("id", "there is no note of this id")]
    return []


# Reducers change the state in place. They run only when no check has objected.


@rules.reduce("note.added")
def added(state: dict[str, Any], event: Event) -> None:
    notes = state.setdefault("notes", {})
    notes[event.data["id"]] = {"text": event.data["text"], "tags": event.data.get("tags", [])}


@rules.reduce("note.edited")
def edited(state: dict[str, Any], event: Event) -> None:
    note = state["notes"][event.data["id"]]
    note.update({key: value for key, value in event.data.items() if key != "id"})


@rules.reduce("note.removed")
def removed(state: dict[str, Any], event: Event) -> None:
    del state["notes"][event.data["id"]]


@rules.reduce("outline.renamed")
def renamed(state: dict[str, Any], event: Event) -> None:
    state["title"] = event.data["title"]


# What takes an event back, given the state before it. Only clients ask, for `undo`.


@rules.undo("note.added")
def remove_added(_state: dict[str, Any], event: Event) -> list[Compensating]:
    return [compensate("note.removed", {"id": event.data["id"]})]


@rules.undo("note.removed")
def add_removed(state: dict[str, Any], event: Event) -> list[Compensating]:
    return [compensate("note.added", {"id": event.data["id"], **state["notes"][event.data["id"]]})]


@rules.undo("note.edited")
def edit_back(state: dict[str, Any], event: Event) -> list[Compensating]:
    before = {"id": event.data["id"], **state["notes"][event.data["id"]]}
    return [compensate("note.edited", {key: before[key] for key in event.data})]
