"""Shorthands for the events of both profiles, on top of `submit`; what they give is what `submit` gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from unisono.client.ids import new_id
from unisono.vocabulary import JsonObject

R = TypeVar("R")

Position: TypeAlias = str | Mapping[str, str]
"""`"first"`, `"last"`, `{"after": id}` or `{"before": id}`."""


class Tree(Generic[R]):
    """One tree of a partition, as in `client.tree("explorer").push({"title": "Notes"})`."""

    def __init__(self, actions: Actions[R], target: str, partition: str | None) -> None:
        self._actions = actions
        self._target = target
        self._partition = partition

    def push(
        self, value: Mapping[str, Any], *, parent: str | None = None, position: Position | None = None
    ) -> R:
        """Add an item; without an `id` in its value it gets a new one."""
        item: JsonObject = dict(value)
        item.setdefault("id", new_id())
        return self._act("treePush", item, parent=parent, position=position)

    def update(self, id: str, value: Mapping[str, Any], *, replace: bool = False) -> R:
        """Merge into an item's data, or replace it."""
        return self._act("treeUpdate", dict(value), id=id, replace=replace or None)

    def move(self, id: str, *, parent: str | None = None, position: Position | None = None) -> R:
        """Move an item with all below it."""
        return self._act("treeMove", None, id=id, parent=parent, position=position)

    def delete(self, id: str) -> R:
        """Remove an item with all below it."""
        return self._act("treeDelete", None, id=id)

    def _act(self, kind: str, value: JsonObject | None, **options: Any) -> R:
        payload: JsonObject = {"target": self._target}
        if value is not None:
            payload["value"] = value
        given: JsonObject = {
            name: dict(option) if isinstance(option, Mapping) else option
            for name, option in options.items()
            if option is not None
        }
        if given:
            payload["options"] = given
        return self._actions.act({"type": kind, "payload": payload}, self._partition)


class Actions(ABC, Generic[R]):
    """What a client can say in one line."""

    @abstractmethod
    def act(self, event: JsonObject, partition: str | None) -> R:
        """Submit an event to a partition; None is the client's only one."""

    def tree(self, target: str, partition: str | None = None) -> Tree[R]:
        """A tree to push to, update, move in and delete from (profile compatibility)."""
        return Tree(self, target, partition)

    def set(self, target: str, value: Any, *, replace: bool = False, partition: str | None = None) -> R:
        """Set a value at a dot path; an object merges into one that is there unless `replace`."""
        payload: JsonObject = {"target": target, "value": value}
        if replace:
            payload["options"] = {"replace": True}
        return self.act({"type": "set", "payload": payload}, partition)

    def unset(self, target: str, *, partition: str | None = None) -> R:
        """Remove what is at a dot path."""
        return self.act({"type": "unset", "payload": {"target": target}}, partition)

    def event(
        self, schema: str, data: Any, *, meta: Mapping[str, Any] | None = None, partition: str | None = None
    ) -> R:
        """An event of the model (profile canonical)."""
        payload: JsonObject = {"schema": schema, "data": data}
        if meta is not None:
            payload["meta"] = dict(meta)
        return self.act({"type": "event", "payload": payload}, partition)


def only(partitions: Sequence[str], partition: str | None) -> str:
    """The partition that is meant when none is named."""
    if partition is not None:
        return partition
    if len(partitions) != 1:
        raise TypeError(f"name the partition: this client follows {len(partitions)} of them")
    return partitions[0]
