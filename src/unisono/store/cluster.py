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


class ModelRefused(Exception):
    """A model that is not newer than the one in force, or has the version of another one. Nothing changed; the text
    says what to do."""


class ModelBundle(msgspec.Struct, frozen=True):
    """A model as one node published it: its files by relative path."""

    version: int
    digest: str
    files: dict[str, bytes]


class News(msgspec.Struct, frozen=True):
    """What happened elsewhere since the last look, in commit order, and where the log is now.

    `more`: so much happened that this is only its beginning; ask again. `erased`: text was erased from the log, and
    states folded before may still hold it. `log_epoch` is the log's now, where it was looked at.
    """

    head: int
    records: Sequence[Record] = ()
    replaced: Sequence[int] = ()
    model_version: int | None = None
    more: bool = False
    erased: bool = False
    log_epoch: int | None = None


class Cluster(Protocol):
    """A log that other nodes write too."""

    def wake_fd(self) -> int:
        """Readable when there may be news; `catch_up` clears it. The same number for the life of the object."""
        ...

    def catch_up(self, *, fresh: bool = False) -> News:
        """What other nodes committed, and which of this node's connections were replaced, since last asked.

        Outside any group. `fresh`: nothing committed before the call is missing. Otherwise cheap when nobody
        called: may be asked as often as one likes, and is to be asked a few times a second, since a wake-up can
        be lost.
        """
        ...

    def claim(self, client_id: str, conn: int) -> int:
        """Make `conn` of this node the one connection of the client; the epoch it got. Outside any group."""
        ...

    def claim_many(self, claims: Sequence[tuple[str, int]]) -> Sequence[int]:
        """The same for several (client_id, conn), in this order, at the cost of one durable commit."""
        ...

    def release(self, client_id: str, conn: int) -> None:
        """Give the claim up, if it is still held; may take effect a little later."""
        ...

    def fence(self, holders: Sequence[tuple[str, int]]) -> None:
        """Name the (client_id, conn) pairs of the next group; its opening tells which of them are replaced."""
        ...

    def published_model(self) -> ModelBundle | None:
        """The newest model any node published."""
        ...

    def publish_model(self, bundle: ModelBundle) -> None:
        """Make a newer model the one in force on every node; the one in force again changes nothing.

        ModelRefused when it is not newer. Outside any group.
        """
        ...

    def reopen(self) -> None:
        """After StoreLost: reach the log again, with the same claims and the same place in it.

        What a lost `commit` made durable after all comes as news. StoreLost: not yet. Any other StorageError: this
        is not the log that was left, and only a new start helps.
        """
        ...
