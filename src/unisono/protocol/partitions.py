"""Partition sets: normalised once, then compared, stored, hashed and sent in that one form (PART-*)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import groupby
from unicodedata import combining, normalize

ENTRIES_MAX = 64
"""Entries of one set as sent, before duplicates go (000: at most 64 per event)."""

NAME_BYTES_MAX = 128
"""UTF-8 bytes of one name after NFC (000)."""

SENT_NAME_BYTES_MAX = 4 * NAME_BYTES_MAX
"""UTF-8 bytes of one name before NFC: it never makes a text shorter than two sevenths, so more can never fit."""

MARKS_MAX = 3 + NAME_BYTES_MAX // 2
"""Combining marks in a row: a letter takes up three of them at most, and each of the others has two bytes or more."""

_FEW = 16
"""Characters whose marks need no sorting: the square of that is little."""

_SEVERAL_MARKS = {mark: normalize("NFD", mark) for mark in ("\u0344", "\u0f73", "\u0f75", "\u0f81")}
"""The characters that stand for several combining marks each; Unicode promises to add no more of them."""


class PartitionError(ValueError):
    """A limit broken; `index` is the entry at fault, or None when it is the set as a whole."""

    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


def normalise(
    names: Sequence[str], *, entries_max: int = ENTRIES_MAX, allow_empty: bool = False
) -> tuple[str, ...]:
    """NFC, then check, then dedupe and sort by UTF-8 bytes (PART-01, PART-02).

    Nothing else is rewritten: no trimming, no case folding.
    """
    if not names:
        if allow_empty:
            return ()
        raise PartitionError("at least one partition is required")
    if len(names) > entries_max:
        raise PartitionError(f"{len(names)} partitions given, at most {entries_max} allowed")
    if len(names) == 1:
        return (_checked(names[0], 0),)
    unique = {_checked(name, index) for index, name in enumerate(names)}
    # Code point order is UTF-8 byte order.
    return tuple(sorted(unique))


def normal_start(text: str) -> str | None:
    """NFC of what may be a name or the start of one; None when no name can start so."""
    try:
        return _bounded(text, None)
    except PartitionError:
        return None


def can_be_sent(name: str) -> bool:
    """Whether a name is short enough to be looked at, or to be sent back to whoever named it."""
    return len(name) <= SENT_NAME_BYTES_MAX and len(name.encode(errors="replace")) <= SENT_NAME_BYTES_MAX


def _checked(name: str, index: int) -> str:
    if not name:
        raise PartitionError("a partition name must not be empty", index)
    return _bounded(name, index)


def _bounded(name: str, index: int | None) -> str:
    if not name.isascii():
        _check_sent(len(name), index)
        _check_sent(_bytes(name, index), index)
        name = _nfc(name, index)
        size = _bytes(name, index)
    else:
        size = len(name)
    if size > NAME_BYTES_MAX:
        raise PartitionError(f"a partition name has {size} bytes, at most {NAME_BYTES_MAX} allowed", index)
    return name


def _check_sent(size: int, index: int | None) -> None:
    """`size` is at most the bytes of the name."""
    if size > SENT_NAME_BYTES_MAX:
        raise _too_long(index)


def _too_long(index: int | None) -> PartitionError:
    return PartitionError(f"a partition name is too long, at most {NAME_BYTES_MAX} bytes allowed", index)


def _bytes(name: str, index: int | None) -> int:
    try:
        return len(name.encode())
    except UnicodeEncodeError:
        raise PartitionError("a partition name must be valid Unicode", index) from None


def _nfc(name: str, index: int | None) -> str:
    """NFC at a cost in proportion to the name (LIM-07).

    The library's costs the square of a run of combining marks that is out of order. Sorting such a run by class, each
    class in the order it came, changes nothing of what the text is in NFC.
    """

    def in_order(run: re.Match[str]) -> str:
        if len(run[0]) > MARKS_MAX:
            raise _too_long(index)
        return "".join(sorted(run[0], key=combining))

    if len(name) > _FEW:
        for several, marks in _SEVERAL_MARKS.items():
            name = name.replace(several, marks)
        name = _mark_runs_pattern().sub(in_order, name)
    return normalize("NFC", name)


@cache
def _mark_runs_pattern() -> re.Pattern[str]:
    """Runs of combining marks that are worth sorting."""
    first_plane, second_plane = _marks(0x300, 0x10000), _marks(0x10000, 0x20000)
    # Ranges past the first plane are searched one by one, so that is done for characters past it only.
    mark = f"[{first_plane}]|(?=[\U00010000-\U0001ffff])[{second_plane}]"
    return re.compile(f"(?:{mark}){{{_FEW},}}")


def _marks(start: int, end: int) -> str:
    """The combining marks among these code points, as ranges of a regular expression."""
    runs = groupby(range(start, end), key=lambda code: combining(chr(code)) > 0)
    listed = [list(run) for are_marks, run in runs if are_marks]
    return "".join(f"{chr(run[0])}-{chr(run[-1])}" for run in listed)
