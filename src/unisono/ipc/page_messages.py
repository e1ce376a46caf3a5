"""The messages between fronts and the reader."""

from __future__ import annotations

import msgspec

from unisono.ipc.channel_struct import ChannelStruct
from unisono.vocabulary import LogIdentity


class SnapshotStart(msgspec.Struct, frozen=True, array_like=True):
    """Start a history from snapshots of this model.

    The snapshots have at most `snapshot_bytes_max`; with the page's events it is at most `bytes_max`.
    """

    model_version: int | None
    snapshot_bytes_max: int
    bytes_max: int
    model_digest: str = ""


class AskPage(ChannelStruct, frozen=True):
    """Ask for one page of history; of a partition in `snapshot_starts`, only events after its snapshot.

    With `start` it is a first page, and the reader chooses the snapshots. `log` is the identity that the client
    knows: a page of another log is refused. `authors`: the client has asked for them (EXT-03). `whole_batches`: end
    the page between two atomic batches where that leaves at least half of it (EXT-13).
    """

    ticket: int
    partitions: tuple[str, ...]
    since: int
    upto: int
    limit: int
    bytes_max: int
    snapshot_starts: dict[str, int] = msgspec.field(default_factory=dict)
    start: SnapshotStart | None = None
    log: LogIdentity | None = None
    authors: bool = False
    whole_batches: bool = False


class AskNewest(ChannelStruct, frozen=True):
    """Ask for the newest events of one partition up to `upto`, newest first (EXT-20); answered as AskPage is."""

    ticket: int
    partition: str
    upto: int
    limit: int
    bytes_max: int
    log: LogIdentity | None = None
    authors: bool = False


class CancelPage(ChannelStruct, frozen=True):
    """The page is no longer needed. What asked for it is still answered, exactly once."""

    ticket: int


class PageResult(ChannelStruct, frozen=True):
    """`count` events in wire form, in the order asked for, with commas between them; `last` is the last one's
    committed_id, or `since` when empty.

    `snapshots`, in wire form too, are where the history starts; the next AskPage repeats `snapshot_starts`.
    """

    ticket: int
    events: bytes
    count: int
    last: int
    has_more: bool
    snapshots: tuple[bytes, ...] = ()
    snapshot_starts: dict[str, int] = msgspec.field(default_factory=dict)


class PageFailed(ChannelStruct, frozen=True):
    """The page was not read: the log or the archive is unavailable, or the page was cancelled."""

    ticket: int
