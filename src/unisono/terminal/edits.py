"""Edits of an outline as events: each names its place by the neighbours seen on the screen.

None means that there is nothing to do: the item is at the edge already, or gone.
"""

from __future__ import annotations

from unisono.terminal.outline import Outline
from unisono.vocabulary import Json, JsonObject


def add_after(outline: Outline, beside: str | None, id: str, title: str) -> JsonObject:
    """A new item behind another one; at the end of the outline when that one is gone, or there is none."""
    row = outline.find(beside)
    if row is None:
        return _push(outline, id, title, {"position": "last"})
    return _push(outline, id, title, _placed(row.parent, {"after": row.id}))


def add_into(outline: Outline, parent: str | None, id: str, title: str) -> JsonObject:
    """A new item as the last child of another one; at the end of the outline when that one is gone."""
    row = outline.find(parent)
    return _push(outline, id, title, _placed(None if row is None else row.id, "last"))


def rename(outline: Outline, id: str, title: str) -> JsonObject | None:
    row = outline.find(id)
    if row is None or row.title == title:
        return None
    return _event("treeUpdate", outline, {"id": id}, {row.label: title})


def move_up(outline: Outline, id: str) -> JsonObject | None:
    row = outline.find(id)
    if row is None or row.before is None:
        return None
    return _move(outline, id, row.parent, {"before": row.before})


def move_down(outline: Outline, id: str) -> JsonObject | None:
    row = outline.find(id)
    if row is None or row.after is None:
        return None
    return _move(outline, id, row.parent, {"after": row.after})


def indent(outline: Outline, id: str) -> JsonObject | None:
    """Make it the last child of the sibling before it."""
    row = outline.find(id)
    if row is None or row.before is None:
        return None
    return _move(outline, id, row.before, "last")


def outdent(outline: Outline, id: str) -> JsonObject | None:
    """Make it the sibling right after its parent."""
    row = outline.find(id)
    parent = None if row is None else outline.find(row.parent)
    if parent is None:
        return None
    return _move(outline, id, parent.parent, {"after": parent.id})


def delete(outline: Outline, id: str) -> JsonObject | None:
    """Take it out with all below it."""
    return None if outline.find(id) is None else _event("treeDelete", outline, {"id": id})


def add_anew(outline: Outline, event: JsonObject) -> JsonObject | None:
    """An addition whose place is gone, once more: at the end of its parent, or of the outline when that is gone."""
    payload, id = event.get("payload"), touched(event, outline.target)
    if event.get("type") != "treePush" or not isinstance(payload, dict) or id is None or id in outline.place:
        return None
    options = payload.get("options")
    parent = options.get("parent") if isinstance(options, dict) else None
    known_parent = parent if isinstance(parent, str) and parent in outline.place else None
    return {**event, "payload": {**payload, "options": _placed(known_parent, "last")}}


def touched(event: JsonObject, target: str) -> str | None:
    """The item of the target that an event is about."""
    payload = event.get("payload")
    if not isinstance(payload, dict) or payload.get("target") != target:
        return None
    holder = payload.get("value" if event.get("type") == "treePush" else "options")
    id = holder.get("id") if isinstance(holder, dict) else None
    return id if isinstance(id, str) else None


def _placed(parent: str | None, position: Json) -> JsonObject:
    return {"position": position} if parent is None else {"parent": parent, "position": position}


def _push(outline: Outline, id: str, title: str, options: JsonObject) -> JsonObject:
    return _event("treePush", outline, options, {"id": id, "title": title})


def _move(outline: Outline, id: str, parent: str | None, position: Json) -> JsonObject:
    return _event("treeMove", outline, {"id": id, **_placed(parent, position)})


def _event(kind: str, outline: Outline, options: JsonObject, value: JsonObject | None = None) -> JsonObject:
    payload: JsonObject = {"target": outline.target, "options": options}
    if value is not None:
        payload["value"] = value
    return {"type": kind, "payload": payload}
