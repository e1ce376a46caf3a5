"""Tree events in few words, and what becomes of them."""

from __future__ import annotations

import json
from typing import Any

from unisono.model.profile import Profile
from unisono.model.tree import TreeProfile, TreeState

PROFILE: Profile[TreeState] = TreeProfile()


def event(kind: str, target: str | None = None, **payload: Any) -> Any:
    return {"type": kind, "payload": payload if target is None else {"target": target, **payload}}


def push(
    id: str, *, target: str = "explorer", parent: str = "_root", position: Any = "last", **data: Any
) -> Any:
    options = {"parent": parent, "position": position}
    return event("treePush", target, value={"id": id, **data}, options=options)


def move(id: str, **options: Any) -> Any:
    return event("treeMove", "explorer", options={"id": id, **options})


def delete(id: str, target: str = "explorer") -> Any:
    return event("treeDelete", target, options={"id": id})


def update(id: str, value: Any, **options: Any) -> Any:
    return event("treeUpdate", "explorer", value=value, options={"id": id, **options})


def put(target: str, value: Any, **options: Any) -> Any:
    return event("set", target, value=value, options=options)


def node(id: str, *children: Any) -> Any:
    return {"id": id, "children": list(children)}


def tree(*nodes: Any, **items: Any) -> Any:
    return {"items": items, "tree": list(nodes)}


def after(state: TreeState, *events: Any) -> Any:
    """The dump after events that are all accepted."""
    for one in events:
        assert PROFILE.shape(one) == []
        assert PROFILE.refusals(state, one) == []
        PROFILE.apply(state, one)
    return state.dump()


def refused(state: TreeState, one: Any) -> list[str]:
    """The fields a well-shaped event is refused on; it must be refused and change nothing."""
    assert PROFILE.shape(one) == []
    before = json.dumps(state.dump())
    errors = PROFILE.refusals(state, one)
    assert errors
    assert all(error.message for error in errors)
    assert json.dumps(state.dump()) == before
    return [error.field for error in errors]


def outline() -> TreeState:
    """A with B and C below it, B with D, and E beside A."""
    state = PROFILE.empty()
    after(
        state,
        push("A", name="a"),
        push("B", parent="A"),
        push("C", parent="A"),
        push("D", parent="B"),
        push("E"),
    )
    return state


def order(state: TreeState, target: str = "explorer") -> str:
    """The order of a tree as text: A(B(D)C)E."""
    dumped: Any = state.dump()

    def line(nodes: Any) -> str:
        return "".join(one["id"] + (f"({line(one['children'])})" if one["children"] else "") for one in nodes)

    return line(dumped[target]["tree"])
