"""What a log shared by several nodes offers beyond the commit log: news of the others, and presence.

An embedded log has no cluster. A shared one implements `Cluster` beside `CommitLog`, on the same object, and
its `begin` brings back in the same round trip what other nodes did.

What every implementation keeps:

- one connection per client_id in the whole cluster (CONN-05): a claim raises the client's epoch, and a group
  that carries a submission of a connection whose epoch has passed learns so under the lock that orders groups,
  so nothing of a replaced connection is committed after its successor was told `connected`;
- a wake-up may be lost or doubled, news never: `catch_up` reads the log itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from unisono.store.port import Record, StorageError


class StoreLost(StorageError):
    """The shared log is out of reach for now. Nothing unanswered is known to be committed; reopen later."""


class ModelBundle(msgspec.Struct, frozen=True):
    """A model as one node published it: its files by relative path."""

    version: int
    digest: str
    files: dict[str, bytes]


class News(msgspec.Struct, frozen=True):
    """What happened elsewhere since the last look, in commit order, and where the log is now."""

    head: int
    records: Sequence[Record] = ()
    replaced: Sequence[int] = ()
    model_version: int | None = None


class Cluster(Protocol):
    """A log that other nodes write too."""

    def wake_fd(self) -> int:
        """Readable when there may be news; `catch_up` clears it."""
        ...

    def catch_up(self) -> News:
        """What other nodes committed, and which of this node's connections were replaced, since last asked."""
        ...

    def claim(self, client_id: str, conn: int) -> int:
        """Make `conn` of this node the one connection of the client; the epoch it got."""
        ...

    def release(self, client_id: str, conn: int) -> None:
        """Give the claim up, if it is still held."""
        ...

    def fence(self, holders: Sequence[tuple[str, int]]) -> None:
        """Name the (client_id, conn) pairs of the next group; its opening tells which of them are replaced."""
        ...

    def published_model(self) -> ModelBundle | None:
        """The newest model any node published."""
        ...

    def publish_model(self, bundle: ModelBundle) -> None:
        """Make a newer model the one in force on every node."""
        ...
