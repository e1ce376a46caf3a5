"""The undo log of a state, and the weight of what can be reached in it.

The containers that write to it are in `unisono.model.tracked`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeAlias

from unisono.model.freeze import FORGETFUL
from unisono.model.values import copied, weigh
from unisono.vocabulary import Json

Undo: TypeAlias = tuple[Any, ...]


class TrackedContainer:
    """A dict or list that writes its changes into a journal."""

    __slots__ = ()

    def set_live(self, live: bool) -> Iterable[Json]:
        """Let changes count in the journal's weight, or no more. Returns its parts, which may be tracked too."""
        raise NotImplementedError

    def __copy__(self: Any) -> Any:
        return self.copy()

    def __deepcopy__(self: Any, _memo: object) -> Json:
        return copied(self)


class Reorderable(Protocol):
    """A container whose order is to be repaired after an undo."""

    def reorder(self) -> None: ...


class Journal:
    """The undo log of one state: entries are calls that put one change back, newest last.

    `copies` has what is put in; whoever applies one event to many states gives them all the same.
    """

    __slots__ = ("_rank", "_settled", "copies", "disordered", "entries", "weight")

    def __init__(self) -> None:
        self.entries: list[Undo] = []
        self.weight = 0
        self._rank = 0
        self.copies = FORGETFUL
        self._settled = 0
        self.disordered: dict[int, Reorderable] = {}

    def mark(self) -> int:
        return self._settled + len(self.entries)

    def since(self, mark: int) -> Sequence[Undo]:
        """The changes since a mark."""
        return self.entries[mark - self._settled :]

    def rollback(self, mark: int) -> None:
        """Undo everything since `mark`; key order is repaired once per dict, after the last undo."""
        if not self._settled <= mark <= self.mark():
            raise ValueError("this mark is void: it was taken before a settle, or was rolled back past")
        while self.mark() > mark:
            undo, *arguments = self.entries.pop()
            undo(*arguments)
        for disordered in self.disordered.values():
            disordered.reorder()
        self.disordered.clear()

    def undo_all_but(self, entries: int) -> None:
        """Undo everything but the oldest entries."""
        self.rollback(self._settled + entries)

    def settle(self) -> None:
        entries = self.entries
        if entries:
            self._settled += len(entries)
            entries.clear()

    def next_rank(self) -> int:
        """By which a dict remembers the order in which its keys came."""
        self._rank += 1
        return self._rank

    def count(self, values: Sequence[Json], live: bool) -> None:
        """Take what can be reached from `values` into the weight, or out of it."""
        weight = weigh(values)
        self.weight += weight if live else -weight
        self.enliven(values, live)

    def enliven(self, values: Iterable[Json], live: bool) -> None:
        """Let changes of these containers count, or no more."""
        waiting: list[object] = list(values)
        while waiting:
            value = waiting.pop()
            if isinstance(value, TrackedContainer):
                waiting += value.set_live(live)
