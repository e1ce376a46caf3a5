"""The snapshots from which a first sync starts (SYNC-12).

A partition that starts from a snapshot needs only the events after it: the snapshot's committed_id is its
snapshot start. A partition without a snapshot starts at 0. An event belongs to the history when it is in one of the
requested partitions and after the start of that partition (see `LogReader.page`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from unisono.store.port import LogReader, Snapshot

logger = logging.getLogger("unisono.reader")

NESTING_RESERVE: Final = 64
"""Levels that the message adds around a state; a state nested too deeply for that is not sent."""

_skip = msgspec.json.Decoder(msgspec.Raw).decode


def starting_snapshots(
    reader: LogReader,
    partitions: Sequence[str],
    model_version: int,
    upto: int,
    bytes_max: int,
    model_digest: str = "",
) -> list[Snapshot]:
    """The snapshots of one model from which the histories of `partitions` can start, at most `bytes_max` in all.

    None is above `upto`: a cycle shows the log as it was at its watermark, and later events come by broadcast.
    Only snapshots that fit are read. They are checked again, because a newer one may have replaced one meanwhile.
    """
    sizes = reader.snapshot_sizes(partitions, model_version, model_digest)
    fitting: list[str] = []
    left = bytes_max
    for partition in partitions:
        committed_id, size = sizes.get(partition, (0, 0))
        if 0 < committed_id <= upto and size <= left:
            fitting.append(partition)
            left -= size
    chosen: list[Snapshot] = []
    left = bytes_max
    read = reader.snapshots_of(fitting, model_version, model_digest) if fitting else ()
    found = {each.partition: each for each in read}
    for snapshot in (found[name] for name in fitting if name in found):
        if not 0 < snapshot.committed_id <= upto or len(snapshot.state) > left:
            continue
        if not is_sound(snapshot.state):
            logger.error(
                "snapshot of %r at %d is damaged, not sent",
                snapshot.partition,
                snapshot.committed_id,
                extra={"partition": snapshot.partition, "committed_id": snapshot.committed_id},
            )
            continue
        chosen.append(snapshot)
        left -= len(snapshot.state)
    return chosen


def is_sound(state: bytes) -> bool:
    """Whether a state can be put into a message as it is: the JSON of an object, or of a packed one."""
    try:
        state.decode()
        _skip(b"[" * NESTING_RESERVE + state + b"]" * NESTING_RESERVE)
        _skip(state)
    except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError):
        return False
    return state[:1] in (b"{", b"[")
