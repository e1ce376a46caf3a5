"""Random edits of a shared document, chosen by what the one who edits can see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

IDS = tuple("abcdefghij")
TARGETS = ("outline", "todo")
KEYS = ("title", "settings", "settings.theme", "count")


def edit(
    random: Random, view: Callable[[str], Any], partitions: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """An event and where it goes; mostly valid in what is seen, and often not any more when it is judged."""
    names = [random.choice(partitions)]
    if random.random() < 0.15:
        names = random.sample(partitions, min(2, len(partitions)))
    if random.random() < 0.3:
        return _plain(random), names
    target = random.choice(TARGETS)
    seen = view(names[0])
    tree = seen.get(target, {}) if isinstance(seen, dict) else {}
    items = sorted(tree.get("items", {})) if isinstance(tree, dict) else []
    return _on_tree(random, target, items), names


def _plain(random: Random) -> dict[str, Any]:
    target = random.choice(KEYS)
    if random.random() < 0.2:
        return {"type": "unset", "payload": {"target": target}}
    value = random.choice([random.randint(0, 99), {"theme": random.choice("xyz")}, "words", None])
    return {"type": "set", "payload": {"target": target, "value": value}}


def _on_tree(random: Random, target: str, items: list[str]) -> dict[str, Any]:
    missing = [id for id in IDS if id not in items]
    kind = random.choice(["treePush", "treePush", "treeUpdate", "treeMove", "treeDelete"])
    if not items or (kind == "treePush" and missing):
        place: dict[str, Any] = {"position": random.choice(["first", "last"])}
        if items and random.random() < 0.6:
            place["parent"] = random.choice(items)
        value = {"id": random.choice(missing or IDS), "n": random.randint(0, 999)}
        return {"type": "treePush", "payload": {"target": target, "value": value, "options": place}}
    id = random.choice(items)
    if kind == "treeDelete":
        return {"type": "treeDelete", "payload": {"target": target, "options": {"id": id}}}
    if kind == "treeMove":
        parent = random.choice([*items, "_root"])
        options = {"id": id, "parent": parent, "position": random.choice(["first", "last"])}
        return {"type": "treeMove", "payload": {"target": target, "options": options}}
    value = {random.choice("pqr"): random.randint(0, 999)}
    return {"type": "treeUpdate", "payload": {"target": target, "value": value, "options": {"id": id}}}
