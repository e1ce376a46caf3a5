"""What an operator's views ask of a log beyond pages: names of partitions, their sizes, and their newest events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from unisono.store.cluster import ModelBundle
from unisono.store.port import LogReader


class PartitionSize(msgspec.Struct, frozen=True):
    """The newest events of a partition that are in the log, up to the limit asked for; ids are 0 without any."""

    events: int
    first: int
    last: int


class NodeSeen(msgspec.Struct, frozen=True):
    """A node of a shared log, and how long ago it was heard of."""

    name: str
    seen_s: float


class BrowsableLog(LogReader, Protocol):
    """A reader of either store. Each call costs in proportion to its `limit`, never to the log."""

    def names_from(self, prefix: str, after: str, limit: int) -> Sequence[str]:
        """Names of partitions that have, or had, events: those with `prefix`, after `after`, in the store's order."""
        ...

    def partition_size(self, partition: str, limit: int) -> PartitionSize: ...

    def newest_ids(self, partition: str, upto: int, limit: int) -> Sequence[int]:
        """Ids of the newest events of a partition in the log, `upto` at most, descending."""
        ...

    def model_in_force(self) -> ModelBundle | None: ...

    def nodes(self, limit: int) -> Sequence[NodeSeen]:
        """The nodes of a shared log that are alive or were until lately, by name; none of an embedded one."""
        ...
