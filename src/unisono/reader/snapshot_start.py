"""History that starts from snapshots: which ones a cycle starts from (SYNC-12).

A partition that starts from a snapshot needs only the events after it, so the snapshot's committed_id is its floor;
a partition without one has the floor 0. An event belongs to the history when it is in one of the asked partitions
and above the floor of that partition (see `LogReader.page`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from unisono.store.port import LogReader, Snapshot

log = logging.getLogger("unisono.reader")

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
    Nothing is read that does not fit; between the two looks a snapshot may have been replaced by a newer one.
    """
    sizes = reader.snapshot_sizes(partitions, model_version, model_digest)
    wanted: list[str] = []
    left = bytes_max
    for partition in partitions:
        committed_id, size = sizes.get(partition, (0, 0))
        if 0 < committed_id <= upto and size <= left:
            wanted.append(partition)
            left -= size
    chosen: list[Snapshot] = []
    left = bytes_max
    read = reader.snapshots_of(wanted, model_version, model_digest) if wanted else ()
    found = {each.partition: each for each in read}
    for snapshot in (found[name] for name in wanted if name in found):
        if not 0 < snapshot.committed_id <= upto or len(snapshot.state) > left:
            continue
        if not sound(snapshot.state):
            log.error("the snapshot of %r at %d is damaged", snapshot.partition, snapshot.committed_id)
            continue
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
