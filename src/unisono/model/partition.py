"""The state of one partition: what its tree actions and its canonical events have made, side by side.

A partition may receive events of both profiles. Each profile has a half of its own and never sees the other.
"""

from __future__ import annotations

from unisono.model.schema import SchemaState
from unisono.model.tree_state import ReplayedTreeState, TreeState
from unisono.vocabulary import Json, JsonObject

OWN_BYTES = 200
"""What a partition weighs when it holds nothing."""


class PartitionState:
    """Both halves of a partition, each made when first asked for; a half that is not there is empty.

    `skipped` counts the committed events that could not be applied in replay. It is undone by `rollback` and
    is no part of the dump. `replayed`: for a fold of committed events, which asks neither `mark` nor `weight`, and
    uses no event for anything else.
    """

    __slots__ = ("_data", "_marks", "_settled", "_tree", "replayed", "skipped")

    def __init__(
        self, tree: TreeState | None = None, data: SchemaState | None = None, *, replayed: bool = False
    ) -> None:
        self._tree = tree
        self._data = data
        self.replayed = replayed
        self._marks: list[tuple[int | None, int | None, int]] = []
        self._settled = 0
        self.skipped = 0

    @property
    def tree(self) -> TreeState:
        if self._tree is None:
            self._tree = ReplayedTreeState() if self.replayed else TreeState()
        return self._tree

    @property
    def data(self) -> SchemaState:
        if self._data is None:
            self._data = SchemaState(weighed=not self.replayed)
        return self._data

    def mark(self) -> int:
        tree = None if self._tree is None else self._tree.mark()
        data = None if self._data is None else self._data.journal.mark()
        if not self._marks or self._marks[-1] != (tree, data, self.skipped):
            self._marks.append((tree, data, self.skipped))
        return self._settled + len(self._marks) - 1

    def rollback(self, mark: int) -> None:
        """Undo everything since `mark`; a half made since then is dropped."""
        index = mark - self._settled
        if not 0 <= index < len(self._marks):
            raise ValueError("this mark is void: it was taken before a settle, or was rolled back past")
        tree, data, self.skipped = self._marks[index]
        del self._marks[index + 1 :]
        if tree is None:
            self._tree = None
        elif self._tree is not None:
            self._tree.rollback(tree)
        if data is None:
            self._data = None
        elif self._data is not None:
            self._data.rollback(data)

    def settle(self) -> None:
        if self._marks:
            self._settled += len(self._marks)
            self._marks.clear()
        if self._tree is not None:
            self._tree.settle()
        if self._data is not None:
            self._data.journal.settle()

    def dump(self) -> JsonObject:
        """`{"tree": …, "data": …}`; key order in `data` is part of the state and must be stored with it."""
        return {
            "tree": {} if self._tree is None else self._tree.dump(),
            "data": {} if self._data is None else self._data.dump(),
        }

    @classmethod
    def load(cls, dumped: Json, *, replayed: bool = False) -> PartitionState:
        """The state that `dump` gave; `ValueError` when it is none."""
        if not isinstance(dumped, dict) or dumped.keys() != {"tree", "data"}:
            raise ValueError("the state of a partition is an object of `tree` and `data`")
        tree, data = dumped["tree"], dumped["data"]
        if not isinstance(tree, dict) or not isinstance(data, dict):
            raise ValueError("both halves of a partition's state are objects")  # noqa: TRY004
        grown = (ReplayedTreeState(tree) if replayed else TreeState(tree)) if tree else None
        return cls(grown, SchemaState(data, weighed=not replayed) if data else None, replayed=replayed)

    def weight(self) -> int:
        tree = 0 if self._tree is None else self._tree.weight()
        return OWN_BYTES + tree + (0 if self._data is None else self._data.journal.weight)
