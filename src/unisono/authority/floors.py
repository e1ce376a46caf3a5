"""History that starts from snapshots: which ones a cycle starts from, and its pages above them (SYNC-12).

A partition that starts from a snapshot needs only the events after it, so the snapshot's committed_id is its floor;
a partition without one has the floor 0. An event belongs to the history when it is in one of the asked partitions
and above the floor of that partition. Floors cut a range of ids into pieces; within a piece the same partitions
count for every id, so each piece is an ordinary page of the log. There are never more pieces than partitions, so a
page still costs what it holds (SYNC-10).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from unisono.store.port import LogReader, Page, Record, Snapshot

log = logging.getLogger("unisono.reader")

UNFIT_MAX: Final = 4
"""Snapshots read for one request in vain, because they were too large or damaged; then no more are looked at."""

NESTING_SPARE: Final = 64
"""Levels around a state that a reader of the message may have; one nested too deeply for that is not sent."""

_skip = msgspec.json.Decoder(msgspec.Raw).decode


def starting_points(
    reader: LogReader,
    partitions: Sequence[str],
    model_version: int,
    upto: int,
    bytes_max: int,
    model_digest: str = "",
) -> list[Snapshot]:
    """The snapshots of one model from which the histories of `partitions` can start, `bytes_max` in all.

    None is above `upto`: a cycle holds the log as it was at its watermark, and events above it come by broadcast.
    """
    chosen: list[Snapshot] = []
    left, unfit = bytes_max, 0
    for partition in partitions:
        if unfit == UNFIT_MAX:
            break
        snapshot = reader.snapshot(partition, model_version, model_digest)
        if snapshot is None or not 0 < snapshot.committed_id <= upto:
            continue
        if len(snapshot.state) > left:
            unfit += 1
        elif not sound(snapshot.state):
            log.error("the snapshot of %r at %d is damaged", partition, snapshot.committed_id)
            unfit += 1
        else:
            chosen.append(snapshot)
            left -= len(snapshot.state)
    return chosen


def sound(state: bytes) -> bool:
    """Whether these bytes can be put into a message as they are: JSON of an object, or of one taken apart."""
    try:
        state.decode()
        _skip(b"[" * NESTING_SPARE + state + b"]" * NESTING_SPARE)
        _skip(state)
    except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError):
        return False
    return state[:1] in (b"{", b"[")


def page_above(
    reader: LogReader,
    partitions: Sequence[str],
    floors: Mapping[str, int],
    since: int,
    upto: int,
    *,
    limit: int,
    bytes_max: int,
) -> Page:
    """A page as `LogReader.page` gives it, without what lies at or below the floors of all its partitions."""
    records: list[Record] = []
    left = bytes_max
    for names, after, until in pieces(partitions, floors, since, upto):
        full = bool(records) and (len(records) >= limit or left <= 0)
        page = (
            reader.page(names, after, until, limit=1, bytes_max=1)
            if full
            else reader.page(names, after, until, limit=limit - len(records), bytes_max=left)
        )
        if not page.records:
            continue
        if full or (records and len(page.records[0].event) > left):
            return Page(records, has_more=True)
        records += page.records
        left -= sum(len(record.event) for record in page.records)
        if page.has_more:
            return Page(records, has_more=True)
    return Page(records, has_more=False)


def pieces(
    partitions: Sequence[str], floors: Mapping[str, int], since: int, upto: int
) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """The range `since < id <= upto` cut at the floors, ascending: which partitions count, from where to where."""
    edges = sorted({floors.get(name, 0) for name in partitions})
    for edge, following in zip(edges, [*edges[1:], upto], strict=True):
        after, until = max(since, edge), min(upto, following)
        if after < until:
            yield tuple(name for name in partitions if floors.get(name, 0) <= edge), after, until
