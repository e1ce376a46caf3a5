"""Partition sets: normalised once, then compared, stored, hashed and sent in that one form (PART-*)."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

ENTRIES_MAX = 64
"""Entries of one set as sent, before duplicates go (000: at most 64 per event)."""

NAME_BYTES_MAX = 128
"""UTF-8 bytes of one name after NFC (000)."""


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


def _checked(name: str, index: int) -> str:
    if name.isascii():
        size = len(name)
    else:
        name = unicodedata.normalize("NFC", name)
        try:
            size = len(name.encode())
        except UnicodeEncodeError:
            raise PartitionError("a partition name must be valid Unicode", index) from None
    if not size:
        raise PartitionError("a partition name must not be empty", index)
    if size > NAME_BYTES_MAX:
        raise PartitionError(f"a partition name has {size} bytes, at most {NAME_BYTES_MAX} allowed", index)
    return name
