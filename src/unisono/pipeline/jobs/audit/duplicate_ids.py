"""Finds event ids that occur twice in the whole history: tasks exchange ids by their hash.

Each file's ids become pairs (hash, committed_id), 16 bytes per event, sent to the task for that hash, where equal ids
meet. A task has the pairs of about a million events. Matches are looked up in the files again, so hash collisions are
not reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np

from unisono.lake.storage import Storage
from unisono.lake.write import DataFile
from unisono.pipeline.jobs.audit.event_checks import complete_rows
from unisono.pipeline.jobs.audit.findings import KEPT_MAX, FindingTally
from unisono.pipeline.jobs.audit.read_file import readable
from unisono.pipeline.row_fingerprints import texts

EVENTS_PER_EXCHANGE: Final = 1_000_000
"""Events per task of the exchange: about 50 MB while they are sorted."""

GROUPS_MAX: Final = 4 * KEPT_MAX
"""Groups of events with one id that a task lists; further groups are counted."""


class SharedIds(msgspec.Struct, frozen=True):
    """Groups of committed ids that share an event id, found by one task, and the number of further ones."""

    groups: list[tuple[int, ...]]
    more: int


def exchanges(events: int, cores: int) -> int:
    """The number of parts of the exchange."""
    return max(cores, -(-events // EVENTS_PER_EXCHANGE))


def split(hashes: Any, committed_ids: Any, parts: int) -> Iterator[tuple[int, bytes]]:
    """The pairs of one file, by their part of the exchange."""
    order = np.argsort(hashes % np.uint64(parts), kind="stable")
    homes = (hashes % np.uint64(parts))[order]
    pairs = np.column_stack([hashes[order], committed_ids[order].view("u8")])
    edges = np.searchsorted(homes, np.arange(parts + 1, dtype=np.uint64))
    for part in range(parts):
        if edges[part] < edges[part + 1]:
            yield part, pairs[edges[part] : edges[part + 1]].tobytes()


def find_shared_ids(blobs: Iterable[bytes]) -> SharedIds:
    """One part of the exchange: committed ids whose event ids have the same hash."""
    pairs = np.frombuffer(b"".join(blobs), np.uint64).reshape(-1, 2)
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    starts = np.flatnonzero(np.concatenate([[True], pairs[1:, 0] != pairs[:-1, 0]]))
    ends = np.concatenate([starts[1:], [len(pairs)]])
    groups: list[tuple[int, ...]] = []
    more = 0
    for start, end in zip(starts, ends, strict=True) if len(starts) < len(pairs) else ():
        if end - start > 1:
            ids = sorted(set(pairs[start:end, 1].astype(np.int64).tolist()))
            if len(ids) > 1 and len(groups) < GROUPS_MAX:
                groups.append(tuple(ids))
            elif len(ids) > 1:
                more += len(ids) - 1
    return SharedIds(groups, more)


class Lookup(msgspec.Struct, frozen=True):
    """Committed ids of one file whose event ids are read."""

    storage: Storage
    file: DataFile
    committed_ids: tuple[int, ...]


def lookups(storage: Storage, files: Sequence[DataFile], groups: Sequence[tuple[int, ...]]) -> list[Lookup]:
    wanted = np.unique(np.array(list(chain.from_iterable(groups)), np.int64))
    return [
        Lookup(storage, file, tuple(own.tolist()))
        for file in files
        if len(own := wanted[(wanted >= file.first_id) & (wanted <= file.last_id)])
    ]


def look_up(task: Lookup) -> list[tuple[int, bytes]]:
    """On an executor: the event ids of some events."""
    wanted = np.array(task.committed_ids, np.int64)
    found = []
    for batch in readable(task.storage, task.file, ("committed_id", "id")):
        rows = complete_rows(batch, FindingTally(1), ("committed_id", "id"))
        ids = np.asarray(rows.column("committed_id"))
        names = texts(rows.column("id"))
        found += [(int(ids[place]), names[place]) for place in np.flatnonzero(np.isin(ids, wanted))]
    return found


def report_shared_ids(
    groups: Iterable[tuple[int, ...]], found: Iterable[tuple[int, bytes]], tally: FindingTally
) -> None:
    """Add a finding for each event whose id an earlier event has."""
    names: dict[int, bytes] = dict(found)
    for group in groups:
        firsts: dict[bytes, int] = {}
        for committed_id in group:
            name = names.get(committed_id)
            if name is None:
                continue
            first = firsts.setdefault(name, committed_id)
            if first != committed_id:
                shown = name.decode(errors="replace")
                tally.add("id", f"its id {shown!r} is that of event {first} too", committed_id)
