"""Random histories of tree actions: hostile ids, trees in trees, writes beside, above and inside trees."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.model.oracle import clone, trees

IDS: list[str] = [*"ABCDEFGHIJ", "items", "tree", "id", "children", "first", "null", "0", " ", ".", "a.b"]
IDS += ["__proto__", "constructor", "\u00e9", "e\u0301", "\U0001d518", "L" * 300]
MANY_IDS = IDS + [f"N{number}" for number in range(400)]

TARGETS: list[str] = ["explorer"] * 12 + ["deep.er.tree"] * 4 + ["explorer.items.A.sub"] * 3
TARGETS += ["explorer.items.A", "explorer.items", "explorer.tree", "explorer.items.tree", "explorer.extra"]
TARGETS += ["explorer.items.B.sub.items.A", "plain", "plain.items", "plain.tree", "items", "tree"]
TARGETS += ["deep", "deep.er"]
BELOW = ["items", "tree", "items.A", "items.A.name", "items.A.id", "items.A.sub", "items.nobody", "tree.0"]
BELOW += ["extra"]


class Writer:
    """Makes events of the right shape that often fit the state and often do not.

    A calm writer only works at one tree, with many ids, and so grows it large.
    """

    def __init__(self, seed: int, *, calm: bool = False) -> None:
        self.random = random.Random(seed)
        self.calm = calm
        self.ids = MANY_IDS if calm else IDS

    def event(self, state: Any) -> Any:
        kinds = ["treePush"] * 10 + ["treeMove"] * 8 + ["treeUpdate"] * 4 + ["treeDelete"]
        if not self.calm:
            kinds += ["treeDelete", "set", "set", "set", "unset", *(["init"] if self.chance(0.05) else [])]
        kind = self.random.choice(kinds)
        make = getattr(self, kind)
        return {"type": kind, "payload": make(state)}

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def target(self, state: Any) -> str:
        if self.calm:
            return "explorer"
        known = [".".join(path) for path, _ in trees(state) if not any("." in key or not key for key in path)]
        return self.random.choice(known if known and self.chance(0.6) else TARGETS)

    def id(self, state: Any, target: str, known: float) -> str:
        here = [list(tree["items"]) for path, tree in trees(state) if ".".join(path) == target]
        if here and here[0] and self.chance(known):
            return str(self.random.choice(sorted(here[0])))
        return self.random.choice(self.ids)

    def place(self, state: Any, target: str) -> Any:
        options: Any = {}
        if self.chance(0.7):
            options["parent"] = "_root" if self.chance(0.2) else self.id(state, target, 0.95)
        if self.chance(0.7):
            position = self.random.choice(["first", "last", "after", "before"])
            sibling = position in ("after", "before")
            options["position"] = {position: self.sibling(state, target, options)} if sibling else position
        for name in ("parent", "position"):
            if name not in options and self.chance(0.2):
                options[name] = None
        return options

    def sibling(self, state: Any, target: str, options: Any) -> str:
        """Mostly a child of the chosen parent, found by scanning."""
        for path, tree in trees(state):
            work = [{"id": "_root", "children": tree["tree"]}] if ".".join(path) == target else []
            while work:
                node = work.pop()
                if node["id"] == (options.get("parent") or "_root") and node["children"] and self.chance(0.9):
                    return str(self.random.choice(node["children"])["id"])
                work += node["children"]
        return self.random.choice(self.ids)

    def value(self, depth: int = 0) -> Any:
        kind = self.random.randrange(9 if depth < 3 else 5)
        if kind < 5:
            return self.random.choice([None, True, 0, -1.5, "text", "\U0001d518", ""])
        if kind == 5:
            return [self.value(depth + 1) for _ in range(self.random.randrange(3))]
        if kind == 6:
            return self.tree(depth)
        keys = self.random.sample(["name", "items", "tree", "sub", "id", "A", "x.y", "__proto__"], 3)
        return {key: self.value(depth + 1) for key in keys}

    def tree(self, depth: int = 0) -> Any:
        """A tree, sometimes a broken one."""
        ids = self.random.sample(IDS, self.random.randrange(4))
        made: Any = {"items": {id: {"name": id} for id in ids}, "tree": []}
        places = [made["tree"]]
        for id in ids:
            children: list[Any] = []
            self.random.choice(places).append({"id": id, "children": children})
            places.append(children)
        if self.chance(0.25):
            breaks: list[Callable[[], Any]] = [
                lambda: made["items"].update(ghost={}),
                lambda: made["tree"].append({"id": "ghost", "children": []}),
                lambda: made["tree"].append({"id": "leaf"}),
                lambda: made["tree"].extend(clone(made["tree"])) if ids else made.update(tree=["x"]),
                lambda: (
                    made["items"].update({id: {"id": id} for id in ids}) if ids else made.update(tree=[7])
                ),
                lambda: (
                    made["items"].update(_root={}),
                    made["tree"].append({"id": "_root", "children": []}),
                ),
                lambda: made.update(tree="oak"),
            ]
            self.random.choice(breaks)()
        elif ids and self.chance(0.3) and depth < 2:
            made["items"][ids[0]]["sub"] = self.tree(depth + 1)
        return made

    def treePush(self, state: Any) -> Any:  # noqa: N802
        target = self.target(state)
        data = self.value()
        data = data if isinstance(data, dict) else {"name": data}
        value = {**data, "id": self.id(state, target, 0.1)}
        return {"target": target, "value": value, "options": self.place(state, target) or None}

    def treeMove(self, state: Any) -> Any:  # noqa: N802
        target = self.target(state)
        return {
            "target": target,
            "options": {"id": self.id(state, target, 0.95), **self.place(state, target)},
        }

    def treeUpdate(self, state: Any) -> Any:  # noqa: N802
        target = self.target(state)
        data = self.value()
        options = {"id": self.id(state, target, 0.9), "replace": self.chance(0.3)}
        return {
            "target": target,
            "value": data if isinstance(data, dict) else {"name": data},
            "options": options,
        }

    def treeDelete(self, state: Any) -> Any:  # noqa: N802
        target = self.target(state)
        return {"target": target, "options": {"id": self.id(state, target, 0.9)}}

    def set(self, state: Any) -> Any:
        path = self.path(state)
        value = self.tree() if self.chance(0.3) else self.value()
        if path.endswith(".tree") and self.chance(0.5):
            value = self.shuffled(state, path.removesuffix(".tree"))
        return {
            "target": path,
            "value": value,
            "options": {"replace": isinstance(value, list) or self.chance(0.3)},
        }

    def unset(self, state: Any) -> Any:
        return {"target": self.path(state)}

    def init(self, state: Any) -> Any:
        value = {"explorer": self.tree(), "items": {"A": {}}, "tree": [1], "plain": self.value()}
        if self.chance(0.5):
            self.name_items(value)
        return {"value": value}

    def name_items(self, state: Any) -> None:
        """Let items of trees carry their ids, and now and then another."""
        for _, tree in trees(state):
            for key, data in tree["items"].items():
                if isinstance(data, dict) and self.chance(0.8):
                    data["id"] = key if self.chance(0.97) else self.random.choice([key + "2", None, 5, [key]])

    def path(self, state: Any) -> str:
        path = self.target(state)
        return f"{path}.{self.random.choice(BELOW)}" if self.chance(0.7) else path

    def shuffled(self, state: Any, target: str) -> Any:
        for path, tree in trees(state):
            if ".".join(path) == target:
                ids = sorted(tree["items"])
                self.random.shuffle(ids)
                return [{"id": id, "children": []} for id in ids]
        return []
