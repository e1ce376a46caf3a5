"""Checks of single rows of a log; the same for every store."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import msgspec

from unisono.protocol.canonical import NotCanonical, canonical, content_hash, parse_canonical
from unisono.protocol.identities import EVENT_ID_BYTES_MAX
from unisono.protocol.partitions import normalise
from unisono.protocol.tombstones import is_tombstone
from unisono.store.port import CLOCK_SKEW_MAX_MS, LogFinding

Row = tuple[Any, ...]

HASH_BYTES: Final = 32
"""Of SHA-256."""

TIME_MAX_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999: no clock gives a later time."""


def record_findings(row: Row) -> Iterator[LogFinding]:
    """Defects of one event: its id, partitions, canonical form and hash.

    An erased event keeps the hash of its former text, which cannot be checked any more.
    """
    committed_id, id, _client_id, partitions, event, hash, _time, author = row
    if not 0 < len(id.encode()) <= EVENT_ID_BYTES_MAX:
        yield LogFinding("id", f"its id has {len(id.encode())} bytes", committed_id)
    if complaint := _partitions_complaint(partitions):
        yield LogFinding("partitions", complaint, committed_id)
    try:
        _, text = parse_canonical(event)
    except NotCanonical as error:
        yield LogFinding("event", f"its JSON cannot be read: {error}", committed_id)
    else:
        if text != event:
            yield LogFinding("event", "its JSON is not in canonical form", committed_id)
    if complaint := _author_complaint(author):
        yield LogFinding("author", complaint, committed_id)
    if not is_tombstone(event) and hash != content_hash(event, partitions.encode()):
        yield LogFinding("hash", "its hash is not that of its content", committed_id)


def time_findings(committed_id: int, time: int, before: int) -> Iterator[LogFinding]:
    """Defects of an event's time; `before` is that of the previous event.

    Time goes back by more than CLOCK_SKEW_MAX_MS where a clock was set right, which is no defect.
    """
    if not 0 < time <= TIME_MAX_MS:
        yield LogFinding("time", f"{time} is not a time in milliseconds", committed_id)
    elif 0 < before - time <= CLOCK_SKEW_MAX_MS:
        yield LogFinding("time", f"{time} is before {before}, the time of the event before it", committed_id)


@lru_cache(maxsize=1024)
def _author_complaint(author: str) -> str | None:
    """The defect of an author, if any."""
    if not author:
        return None
    try:
        value, text = parse_canonical(author.encode())
    except NotCanonical as error:
        return f"its author cannot be read: {error}"
    if not isinstance(value, dict) or not value or value.keys() - {"user_id", "claims"}:
        return "its author is not an object with user_id or claims"
    return None if text == author.encode() else "its author is not in canonical form"


def name_complaint(name: str) -> str | None:
    """The defect of a partition's name, if any."""
    return _partitions_complaint(canonical([name]).decode())


@lru_cache(maxsize=4096)
def names_of(partitions: str) -> tuple[str, ...]:
    """The names in a stored set; empty when it cannot be parsed, which is another finding."""
    try:
        return msgspec.json.decode(partitions, type=tuple[str, ...])
    except msgspec.MsgspecError:
        return ()


@lru_cache(maxsize=4096)
def _partitions_complaint(partitions: str) -> str | None:
    try:
        normal = normalise(names_of(partitions))
    except ValueError as error:
        return f"its partitions {partitions[:200]} are not valid: {error}"
    if canonical(list(normal)).decode() != partitions:
        return f"its partitions {partitions[:200]} are not normalised"
    return None


class PrunedIdSet:
    """Which pruned events are remembered: one bit for each, added in any order."""

    def __init__(self, pruned_to: int) -> None:
        self._pruned_to = pruned_to
        self._bits = bytearray(pruned_to // 8 + 1)

    def __contains__(self, committed_id: int) -> bool:
        return bool(self._bits[committed_id >> 3] >> (committed_id & 7) & 1)

    def add(self, committed_id: int) -> None:
        self._bits[committed_id >> 3] |= 1 << (committed_id & 7)

    def missing_ranges(self) -> Iterator[tuple[int, int]]:
        """The ranges that are not remembered, each by its first and last event."""
        if sum(map(int.bit_count, self._bits)) == self._pruned_to:
            return
        first = None
        for committed_id in range(1, self._pruned_to + 2):
            missing = committed_id <= self._pruned_to and committed_id not in self
            if missing and first is None:
                first = committed_id
            elif not missing and first is not None:
                yield first, committed_id - 1
                first = None
