"""JSON containers that remember how to undo every change made to them.

An operator's reducer changes a state as if it were made of ordinary dicts and lists. Each change leaves an
entry in one `Journal`, so a refused event or a failed group can be undone exactly, key order included, at a
cost in proportion to what was changed.

What is put in is checked and copied once, at the speed of C, and kept closed: plain JSON that nobody changes, and
that several states may share. A rule never gets hold of it. Where it reads a closed container, a tracked one takes
its place that holds the same parts, still closed. So a large value costs one level where it is touched (LIM-07).

What always holds:

- Every container a rule can reach from a tracked root is tracked, by the same journal, and reachable by one way
  only: a value that is put in is copied, also when it comes from the same state. A state therefore means the
  same before it is dumped and after it is loaded again.
- Only JSON is stored. Anything else raises `TypeError` where it is put in.
- `Journal.weight` counts what is reachable, not what a rule has taken out and still holds.
- Nothing here recurses on depth.
- What changes a container and the journal together is `whole`: no time limit of a rule interrupts it.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, Sequence, ValuesView
from typing import Any, Final, SupportsIndex, TypeAlias

from unisono.model.freeze import FORGETFUL
from unisono.model.journal import Journal, TrackedContainer
from unisono.model.rule_timeout import whole
from unisono.model.scalars import check_key
from unisono.model.values import (
    OBJECT_BYTES,
    SLOT_BYTES,
    HeavyArray,
    HeavyObject,
    weigh_entries,
    weigh_entry,
)
from unisono.vocabulary import Json, JsonObject

Tracked: TypeAlias = "TrackedDict | TrackedList"

_CLOSED: Final = frozenset({dict, list, HeavyObject, HeavyArray})
_NUMBERS: Final = frozenset({int, float})  # all weigh the same

_MISSING: Final[Any] = object()
_value_at, _value_or, _set_value = dict.__getitem__, dict.get, dict.__setitem__
"""By name: looking them up by `super()` takes as long as what they do."""


class TrackedDict(TrackedContainer, dict[str, Json]):
    """A JSON object that journals its changes.

    A key put back after a deletion must return to its place, which a dict cannot tell. So from its first
    deletion on, a dict also keeps a rank per key; ranks rise in the order of the keys.
    """

    __slots__ = ("_journal", "_live", "_ranks")

    def __init__(self, journal: Journal, parts: JsonObject, live: bool = False) -> None:
        super().__init__(parts)
        self._journal = journal
        self._live = live
        self._ranks: dict[str, int] | None = None

    # -- reading: a closed part is opened before it is given out -------------------------------------------

    def __getitem__(self, key: str) -> Any:
        value = _value_at(self, key)
        return self._opened(key, value) if type(value) in _CLOSED else value

    def get(self, key: str, default: Any = None) -> Any:
        value = _value_or(self, key, _MISSING)
        if value is _MISSING:
            return default
        return self._opened(key, value) if type(value) in _CLOSED else value

    def _opened(self, key: str, closed: Any) -> Any:
        value = _shell(closed, self._journal, self._live)
        super().__setitem__(key, value)
        return value

    def values(self) -> Any:
        return ValuesView(self)

    def items(self) -> Any:
        return ItemsView(self)

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()  # being overridden makes dict() and ** ask for the items one by one

    def copy(self) -> JsonObject:
        return {key: self[key] for key in self}

    def __or__(self, other: Any) -> Any:
        return self.copy() | other if isinstance(other, dict) else NotImplemented

    def __ror__(self, other: Any) -> Any:
        return other | self.copy() if isinstance(other, dict) else NotImplemented

    # -- changing ------------------------------------------------------------------------------------------

    def __setitem__(self, key: str, value: Any) -> None:
        old = _value_or(self, key, _MISSING)
        if old is _MISSING:
            check_key(key)
            self._insert(key, self._journal.copies.closed(value))
            return
        if value is old and isinstance(old, (dict, list)):
            return  # `state["list"] += [...]` ends by putting the list back where it is
        self._replace(key, old, self._journal.copies.closed(value))

    @whole
    def _insert(self, key: str, new: Json) -> None:
        self._journal.entries.append((self._undo_insert, key))
        _set_value(self, key, new)
        if self._ranks is not None:
            self._ranks[key] = self._journal.next_rank()
        self._count_entry(key, new, True)

    @whole
    def _replace(self, key: str, old: Json, new: Json) -> None:
        self._journal.entries.append((self._undo_replace, key, old))
        _set_value(self, key, new)
        if self._live and not (type(old) in _NUMBERS and type(new) in _NUMBERS):
            self._journal.count((old,), False)
            self._journal.count((new,), True)

    @whole
    def __delitem__(self, key: str) -> None:
        value = super().__getitem__(key)
        if self._ranks is None:
            self._ranks = {name: self._journal.next_rank() for name in self}
        self._journal.entries.append((self._undo_delete, key, value, self._ranks.pop(key)))
        super().__delitem__(key)
        self._count_entry(key, value, False)

    @whole
    def clear(self) -> None:
        cleared = super().copy()
        self._journal.entries.append((self._undo_clear, cleared, self._ranks))
        super().clear()
        self._ranks = None
        self._count_entries(cleared, False)

    def update(self, *others: Any, **named: Any) -> None:
        for key, value in dict(*others, **named).items():
            self[key] = value

    def __ior__(self, other: Any) -> TrackedDict:  # type: ignore[override]
        self.update(other)
        return self

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: str, *default: Any) -> Any:
        if len(default) > 1:
            raise TypeError("pop takes a key and at most one default")
        if key not in self and default:
            return default[0]
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[str, Any]:
        if not self:
            raise KeyError("popitem(): dictionary is empty")
        key = next(super().__reversed__())
        return key, self.pop(key)

    def set_live(self, live: bool) -> Iterable[Json]:
        self._live = live
        return super().values()

    def _count_entry(self, key: str, value: Json, live: bool) -> None:
        if self._live:
            weight = weigh_entry(key, value)
            self._journal.weight += weight if live else -weight
            if isinstance(value, (dict, list)):
                self._journal.enliven((value,), live)

    def _count_entries(self, entries: JsonObject, live: bool) -> None:
        if self._live:
            weight = weigh_entries(entries)
            self._journal.weight += weight if live else -weight
            self._journal.enliven(entries.values(), live)

    def _undo_insert(self, key: str) -> None:
        self._count_entry(key, super().pop(key), False)
        if self._ranks is not None:
            del self._ranks[key]

    def _undo_replace(self, key: str, old: Json) -> None:
        if self._live:
            self._journal.count((super().__getitem__(key),), False)
            self._journal.count((old,), True)
        super().__setitem__(key, old)

    def _undo_delete(self, key: str, value: Json, rank: int) -> None:
        ranks = self._ranks
        assert ranks is not None, "a deletion leaves ranks behind"
        if self and ranks[next(super().__reversed__())] > rank:
            self._journal.disordered[id(self)] = self
        super().__setitem__(key, value)
        ranks[key] = rank
        self._count_entry(key, value, True)

    def _undo_clear(self, cleared: JsonObject, ranks: dict[str, int] | None) -> None:
        super().update(cleared)
        self._ranks = ranks
        self._count_entries(cleared, True)

    def reorder(self) -> None:
        ranks = self._ranks
        if ranks is None:  # an undone `clear` brought the right order with it
            return
        ordered = sorted(super().items(), key=lambda entry: ranks[entry[0]])
        super().clear()
        super().update(ordered)


class TrackedList(TrackedContainer, list[Json]):
    """A JSON array that journals its changes, as splices where it can and whole where it must."""

    __slots__ = ("_journal", "_live")

    def __init__(self, journal: Journal, parts: list[Json], live: bool = False) -> None:
        super().__init__(parts)
        self._journal = journal
        self._live = live

    # -- reading: a closed part is opened before it is given out -------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        value = super().__getitem__(index)
        if type(value) in _CLOSED:
            value = _shell(value, self._journal, self._live)
            super().__setitem__(index, value)
        return value

    def __iter__(self) -> Iterator[Any]:
        index = 0
        while index < len(self):
            yield self[index]
            index += 1

    def __reversed__(self) -> Iterator[Any]:
        for index in range(len(self) - 1, -1, -1):
            if index < len(self):
                yield self[index]

    def copy(self) -> list[Any]:
        return self[:]  # type: ignore[no-any-return]

    def __add__(self, other: Any) -> Any:
        return self[:] + other if isinstance(other, list) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return other + self[:] if isinstance(other, list) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> list[Any]:
        return self[:] * times  # type: ignore[no-any-return]

    __rmul__ = __mul__

    # -- changing ------------------------------------------------------------------------------------------

    def append(self, value: Any) -> None:
        self._splice(len(self), len(self), (value,))

    def extend(self, values: Iterable[Any]) -> None:
        self._splice(len(self), len(self), values)

    def insert(self, index: SupportsIndex, value: Any) -> None:
        start, _, _ = slice(index, None).indices(len(self))
        self._splice(start, start, (value,))

    def pop(self, index: SupportsIndex = -1) -> Any:
        value = self[index]
        del self[index]
        return value

    def remove(self, value: Any) -> None:
        del self[self.index(value)]

    def clear(self) -> None:
        self._splice(0, len(self), ())

    @whole
    def reverse(self) -> None:
        self._journal.entries.append((super().reverse,))
        super().reverse()

    def sort(self, *, key: Callable[[Any], Any] | None = None, reverse: bool = False) -> None:
        ordered: list[Json] = sorted(self, key=key, reverse=reverse)  # type: ignore[arg-type,type-var]
        self._swap(ordered, removed=(), added=())

    def __iadd__(self, values: Iterable[Any]) -> TrackedList:  # type: ignore[override,misc]
        self.extend(values)
        return self

    def __imul__(self, times: SupportsIndex) -> TrackedList:
        if (count := times.__index__()) <= 0:
            self.clear()
        else:
            self.extend(self[:] * (count - 1))
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        if not isinstance(index, slice):
            position = self._position(index)
            if value is not (old := super().__getitem__(position)) or not isinstance(old, (dict, list)):
                self._splice(position, position + 1, (value,))
            return
        start, stop, step = index.indices(len(self))
        if step == 1:
            self._splice(start, max(start, stop), value)
            return
        added = self._journal.copies.all_closed(value)
        swapped = super().copy()
        removed = swapped[index]
        swapped[index] = added  # raises ValueError when the lengths differ
        self._swap(swapped, removed, added)

    def __delitem__(self, index: SupportsIndex | slice) -> None:
        if not isinstance(index, slice):
            position = self._position(index)
            self._splice(position, position + 1, ())
            return
        start, stop, step = index.indices(len(self))
        if step == 1:
            self._splice(start, max(start, stop), ())
            return
        left = super().copy()
        removed = left[index]
        del left[index]
        self._swap(left, removed, added=())

    def set_live(self, live: bool) -> Iterable[Json]:
        self._live = live
        return super().__iter__()

    def _position(self, index: SupportsIndex) -> int:
        position = index.__index__()
        if not -len(self) <= position < len(self):
            raise IndexError("list index out of range")
        return position % len(self)

    def _splice(self, start: int, stop: int, values: Iterable[Any]) -> None:
        """Put `values` in the place of `self[start:stop]`."""
        self._exchange(start, stop, self._journal.copies.all_closed(values))

    @whole
    def _exchange(self, start: int, stop: int, added: list[Json]) -> None:
        start, stop = min(start, len(self)), min(stop, len(self))  # reading `values` may have shortened this
        removed = super().__getitem__(slice(start, stop))
        self._journal.entries.append((self._undo_splice, start, start + len(added), removed))
        super().__setitem__(slice(start, stop), added)
        self._count(removed, added)

    def _undo_splice(self, start: int, stop: int, removed: list[Json]) -> None:
        self._count(super().__getitem__(slice(start, stop)), removed)
        super().__setitem__(slice(start, stop), removed)

    @whole
    def _swap(self, whole: list[Json], removed: Sequence[Json], added: Sequence[Json]) -> None:
        """Hold `whole` instead, which differs by `removed` and `added` and otherwise in order only."""
        self._journal.entries.append((self._undo_swap, super().copy(), removed, added))
        super().__setitem__(slice(None), whole)
        self._count(removed, added)

    def _undo_swap(self, whole: list[Json], removed: Sequence[Json], added: Sequence[Json]) -> None:
        super().__setitem__(slice(None), whole)
        self._count(added, removed)

    def _count(self, removed: Sequence[Json], added: Sequence[Json]) -> None:
        if self._live:
            self._journal.weight += SLOT_BYTES * (len(added) - len(removed))
            self._journal.count(removed, False)
            self._journal.count(added, True)


def track(value: JsonObject, journal: Journal, *, weighed: bool = True) -> TrackedDict:
    """A tracked copy of `value` to be the root of a state; making it is not journaled."""
    root = TrackedDict(journal, FORGETFUL.closed(value), live=weighed)
    if weighed:
        journal.weight += OBJECT_BYTES + weigh_entries(root)
    return root


def _shell(closed: Any, journal: Journal, live: bool) -> Tracked:
    tracked = TrackedDict if isinstance(closed, dict) else TrackedList
    return tracked(journal, closed, live)
