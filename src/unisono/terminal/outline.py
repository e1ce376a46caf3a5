"""An outline as rows: what a view holds at one target, read top to bottom, and which rows are on the screen.

Nothing here recurses: a tree may be deeper than Python's stack.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from unisono.vocabulary import Json, JsonObject

LABELS: Final = ("title", "name")
"""What an item is called, first found; an item without either gets a title when it is renamed."""


class OutlineRow(msgspec.Struct, frozen=True):
    """One item and its place.

    `parent` is None at the top. `before` and `after` are the siblings next to it; `below` is the number of items
    under it, at any depth. `label` is the field its title stands in.
    """

    id: str
    title: str
    depth: int = 0
    parent: str | None = None
    before: str | None = None
    after: str | None = None
    below: int = 0
    label: str = LABELS[0]


class Outline(msgspec.Struct, frozen=True):
    """The items at a target in reading order; each id comes once, and `place` says where.

    `problem` says why there is nothing to show although the target holds something.
    """

    target: str
    rows: tuple[OutlineRow, ...] = ()
    place: Mapping[str, int] = {}
    problem: str = ""

    def find(self, id: str | None) -> OutlineRow | None:
        """The row of an item, if it is there."""
        place = None if id is None else self.place.get(id)
        return None if place is None else self.rows[place]

    def parents(self, id: str) -> list[str]:
        """The items above one, from the nearest up."""
        found: list[str] = []
        row = self.find(id)
        while row is not None and row.parent is not None:
            found.append(row.parent)
            row = self.find(row.parent)
        return found


def read(view: Json, target: str) -> Outline:
    """The outline at a target of a partition's view; an empty one where nothing is yet."""
    found = view
    for key in target.split("."):
        if not isinstance(found, dict):
            return Outline(target, problem=f"{target!r} is no outline here")
        if key not in found:
            return Outline(target)
        found = found[key]
    items, tree = (found.get("items"), found.get("tree")) if isinstance(found, dict) else (None, None)
    if not isinstance(items, dict) or not isinstance(tree, list):
        return Outline(target, problem=f"{target!r} is no outline here")
    rows = tuple(_rows(items, tree))
    return Outline(target, rows, {row.id: place for place, row in enumerate(rows)})


def _rows(items: JsonObject, tree: list[Json]) -> list[OutlineRow]:
    rows: list[OutlineRow] = []
    waiting = _siblings(items, tree, 0, None)
    while waiting:
        row, children = waiting.pop()
        rows.append(row)
        waiting += _siblings(items, children, row.depth + 1, row.id)
    return _counted(rows)


def _siblings(
    items: JsonObject, nodes: Sequence[Json], depth: int, parent: str | None
) -> list[tuple[OutlineRow, list[Json]]]:
    """The rows of one node's children, last first, each with the children of its own."""
    found = [(node["id"], node["children"]) for node in nodes if isinstance(node, dict)]
    siblings: list[tuple[OutlineRow, list[Json]]] = []
    for place, (id, children) in enumerate(found):
        assert isinstance(id, str)
        assert isinstance(children, list)
        title, label = _title(id, items.get(id))
        before = str(found[place - 1][0]) if place else None
        after = str(found[place + 1][0]) if place + 1 < len(found) else None
        siblings.append((OutlineRow(id, title, depth, parent, before, after, label=label), children))
    return siblings[::-1]


def _title(id: str, item: Json) -> tuple[str, str]:
    """What an item is called, and the field that says so."""
    if isinstance(item, dict):
        for label in LABELS:
            if isinstance(title := item.get(label), str | int | float):
                return str(title), label
    return id, LABELS[0]


def _counted(rows: list[OutlineRow]) -> list[OutlineRow]:
    """The same rows, each with the number of those below it: it ends where the next one is no deeper."""
    open_rows: list[int] = []
    ends = [len(rows)] * len(rows)
    for place, row in enumerate(rows):
        while open_rows and rows[open_rows[-1]].depth >= row.depth:
            ends[open_rows.pop()] = place
        open_rows.append(place)
    return [
        msgspec.structs.replace(row, below=end - place - 1) if end - place > 1 else row
        for place, (row, end) in enumerate(zip(rows, ends, strict=True))
    ]


def visible(outline: Outline, folded: Collection[str]) -> list[OutlineRow]:
    """The rows that are not below a folded one."""
    shown: list[OutlineRow] = []
    place = 0
    while place < len(outline.rows):
        row = outline.rows[place]
        shown.append(row)
        place += 1 + (row.below if row.id in folded else 0)
    return shown


def nearest(rows: Sequence[OutlineRow], gone: str | None, outline: Outline) -> str | None:
    """Where a selection goes when its item is gone: to the next of the old rows that is left, or the last before."""
    ids = [row.id for row in rows]
    start = ids.index(gone) if gone in ids else 0
    for id in (*ids[start:], *reversed(ids[:start])):
        if id in outline.place:
            return id
    return outline.rows[0].id if outline.rows else None
