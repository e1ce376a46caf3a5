"""JSON containers that remember how to undo every change made to them.

An operator's reducer changes a state as if it were made of ordinary dicts and lists. Each change leaves an
entry in one `Journal`, so a refused event or a failed group can be undone exactly, key order included, at a
cost in proportion to what was changed.

What always holds:

- Every container reachable from a tracked root is tracked, by the same journal, and reachable by one way
  only: a value that is put in is copied, also when it comes from the same state. A state therefore means the
  same before it is dumped and after it is loaded again.
- Only JSON is held. Anything else raises `TypeError` where it is put in.
- `Journal.weight` counts what is reachable, not what a rule has taken out and still holds.
- Nothing here recurses on depth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, SupportsIndex, TypeAlias

from unisono.model.scalars import check_key, scalar
from unisono.vocabulary import Json, JsonObject

DICT_BYTES = 240
LIST_BYTES = 100
ENTRY_BYTES = 50
SLOT_BYTES = 9
STRING_BYTES = 50
NUMBER_BYTES = 28
"""What containers, their places and scalars take in CPython 3.11 on 64 bits, rounded."""

Tracked: TypeAlias = "TrackedDict | TrackedList"
Undo: TypeAlias = tuple[Any, ...]


class Journal:
    """The undo log of one state: entries are calls that put one change back, newest last."""

    __slots__ = ("_disordered", "_settled", "entries", "rank", "weight")

    def __init__(self) -> None:
        self.entries: list[Undo] = []
        self.weight = 0
        self.rank = 0
        self._settled = 0
        self._disordered: dict[int, TrackedDict] = {}

    def mark(self) -> int:
        return self._settled + len(self.entries)

    def rollback(self, mark: int) -> None:
        """Undo everything since `mark`; key order is repaired once per dict, after the last undo."""
        if not self._settled <= mark <= self.mark():
            raise ValueError("this mark is void: it was taken before a settle, or was rolled back past")
        while self.mark() > mark:
            undo, *arguments = self.entries.pop()
            undo(*arguments)
        for disordered in self._disordered.values():
            disordered._reorder()
        self._disordered.clear()

    def settle(self) -> None:
        self._settled += len(self.entries)
        self.entries.clear()

    def count(self, values: Iterable[Json], live: bool) -> None:
        """Take what can be reached from `values` into the weight, or out of it."""
        total = 0
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if isinstance(value, TrackedDict):
                value._live = live
                total += DICT_BYTES + sum(ENTRY_BYTES + STRING_BYTES + len(key) for key in value)
                waiting.extend(value.values())
            elif isinstance(value, TrackedList):
                value._live = live
                total += LIST_BYTES + SLOT_BYTES * len(value)
                waiting.extend(value)
            elif isinstance(value, str):
                total += STRING_BYTES + len(value)
            elif value is not None and not isinstance(value, bool):
                total += NUMBER_BYTES
        self.weight += total if live else -total


class TrackedDict(dict[str, Json]):
    """A JSON object that journals its changes.

    A key put back after a deletion must return to its place, which a dict cannot tell. So from its first
    deletion on, a dict also keeps a rank per key; ranks rise in the order of the keys.
    """

    __slots__ = ("_journal", "_live", "_ranks")

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal
        self._live = False
        self._ranks: dict[str, int] | None = None

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in self:
            check_key(key)
            new = tracked(value, self._journal)
            self._journal.entries.append((self._undo_insert, key))
            super().__setitem__(key, new)
            if self._ranks is not None:
                self._ranks[key] = self._next_rank()
            self._count_entry(key, new, True)
            return
        old = super().__getitem__(key)
        if value is old and isinstance(old, (dict, list)):
            return  # `state["list"] += [...]` ends by putting the list back where it is
        new = tracked(value, self._journal)
        self._journal.entries.append((self._undo_replace, key, old))
        super().__setitem__(key, new)
        if self._live:
            self._journal.count((old,), False)
            self._journal.count((new,), True)

    def __delitem__(self, key: str) -> None:
        value = super().__getitem__(key)
        if self._ranks is None:
            self._ranks = {name: self._next_rank() for name in self}
        self._journal.entries.append((self._undo_delete, key, value, self._ranks.pop(key)))
        super().__delitem__(key)
        self._count_entry(key, value, False)

    def clear(self) -> None:
        held = dict(self)
        self._journal.entries.append((self._undo_clear, held, self._ranks))
        super().clear()
        self._ranks = None
        for key, value in held.items():
            self._count_entry(key, value, False)

    def update(self, *others: Any, **named: Any) -> None:
        for key, value in dict(*others, **named).items():
            self[key] = value

    def __ior__(self, other: Any) -> TrackedDict:  # type: ignore[override,misc]
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
        key = next(reversed(self))
        return key, self.pop(key)

    def __copy__(self) -> JsonObject:
        return dict(self)

    def __deepcopy__(self, _memo: object) -> Json:
        return plain(self)

    def _next_rank(self) -> int:
        self._journal.rank += 1
        return self._journal.rank

    def _count_entry(self, key: str, value: Json, live: bool) -> None:
        if self._live:
            bytes_ = ENTRY_BYTES + STRING_BYTES + len(key)
            self._journal.weight += bytes_ if live else -bytes_
            self._journal.count((value,), live)

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
        if self and ranks[next(reversed(self))] > rank:
            self._journal._disordered[id(self)] = self
        super().__setitem__(key, value)
        ranks[key] = rank
        self._count_entry(key, value, True)

    def _undo_clear(self, held: JsonObject, ranks: dict[str, int] | None) -> None:
        super().update(held)
        self._ranks = ranks
        for key, value in held.items():
            self._count_entry(key, value, True)

    def _reorder(self) -> None:
        ranks = self._ranks
        if ranks is None:
            return  # an undone `clear` brought the right order with it
        ordered = sorted(self.items(), key=lambda entry: ranks[entry[0]])
        super().clear()
        super().update(ordered)


class TrackedList(list[Json]):
    """A JSON array that journals its changes, as splices where it can and whole where it must."""

    __slots__ = ("_journal", "_live")

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal
        self._live = False

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
            self.extend(list(self) * (count - 1))
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        if not isinstance(index, slice):
            position = self._position(index)
            if value is not (old := self[position]) or not isinstance(old, (dict, list)):
                self._splice(position, position + 1, (value,))
            return
        start, stop, step = index.indices(len(self))
        if step == 1:
            self._splice(start, max(start, stop), value)
            return
        added = [tracked(item, self._journal) for item in value]
        swapped = list(self)
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
        left = list(self)
        del left[index]
        self._swap(left, removed=self[index], added=())

    def __copy__(self) -> list[Json]:
        return list(self)

    def __deepcopy__(self, _memo: object) -> Json:
        return plain(self)

    def _position(self, index: SupportsIndex) -> int:
        position = index.__index__()
        if not -len(self) <= position < len(self):
            raise IndexError("list index out of range")
        return position % len(self)

    def _splice(self, start: int, stop: int, values: Iterable[Any]) -> None:
        """Put `values` in the place of `self[start:stop]`."""
        added = [tracked(value, self._journal) for value in values]
        removed = self[start:stop]
        self._journal.entries.append((self._undo_splice, start, start + len(added), removed))
        super().__setitem__(slice(start, stop), added)
        self._count(removed, added)

    def _undo_splice(self, start: int, stop: int, removed: list[Json]) -> None:
        self._count(self[start:stop], removed)
        super().__setitem__(slice(start, stop), removed)

    def _swap(self, whole: list[Json], removed: Sequence[Json], added: Sequence[Json]) -> None:
        """Hold `whole` instead, which differs by `removed` and `added` and otherwise in order only."""
        self._journal.entries.append((self._undo_swap, list(self), removed, added))
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


def track(value: JsonObject, journal: Journal) -> TrackedDict:
    """A tracked copy of `value` to be the root of a state; making it is not journaled."""
    root = tracked(value, journal)
    assert isinstance(root, TrackedDict), "the root of a state is an object"
    journal.count((root,), True)
    return root


def tracked(value: object, journal: Journal) -> Json:
    """A tracked copy of any JSON value; `TypeError` when it is not JSON or contains itself."""
    if not isinstance(value, (dict, list)):
        return scalar(value)
    root = _shell(value, journal)
    frames: list[tuple[object, Iterator[tuple[object, object]], Tracked]] = [(value, _parts(value), root)]
    path = {id(value)}
    while frames:
        source, parts, target = frames[-1]
        for key, part in parts:
            if not isinstance(part, (dict, list)):
                _fill(target, key, scalar(part))
                continue
            if id(part) in path:
                raise TypeError("a state holds JSON only; this value contains itself")
            shell = _shell(part, journal)
            _fill(target, key, shell)
            frames.append((part, _parts(part), shell))
            path.add(id(part))
            break
        else:
            frames.pop()
            path.discard(id(source))
    return root


def plain(value: Json) -> Json:
    """A copy of a JSON value in ordinary dicts and lists that shares no container with it."""
    holder: list[Json] = [value]
    waiting: list[Any] = [holder]
    while waiting:
        container = waiting.pop()
        for place, part in _parts(container):
            if isinstance(part, (dict, list)):
                copy = dict(part) if isinstance(part, dict) else list(part)
                container[place] = copy  # replaces a value, so the iteration stays valid
                waiting.append(copy)
    return holder[0]


def _shell(value: object, journal: Journal) -> Tracked:
    return TrackedDict(journal) if isinstance(value, dict) else TrackedList(journal)


def _parts(value: dict[Any, Any] | list[Any]) -> Iterator[tuple[object, object]]:
    return iter(value.items()) if isinstance(value, dict) else enumerate(value)


def _fill(target: Tracked, key: object, value: Json) -> None:
    if isinstance(target, TrackedDict):
        dict.__setitem__(target, check_key(key), value)
    else:
        list.append(target, value)
