"""A partition in memory, and what leads back to the time before a group or an atomic batch changed it."""

from __future__ import annotations

import msgspec

from unisono.model.partition import PartitionState


class Resident(msgspec.Struct):
    """A partition in memory. `mark` is set while it contains changes of a group that is not durable yet."""

    state: PartitionState
    weight: int
    upto: int
    since_snapshot: int = 0
    mark: int | None = None


class BatchChange(msgspec.Struct, frozen=True):
    """A partition before an atomic batch changed it: what leads back there."""

    mark: int
    since_snapshot: int
    was_staged: bool
