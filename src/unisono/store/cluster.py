"""What a log shared by several nodes offers beyond `CommitLog`: news of other nodes, and client presence.

An embedded log has no cluster. A shared one implements `Cluster` and `CommitLog` on the same object, and its `begin`
returns in the same round trip what other nodes did.

Every implementation guarantees:

- one connection per client_id in the whole cluster (CONN-05): a claim raises the client's epoch. A group with a
  submission of a replaced connection learns so under the lock that orders groups, so nothing of that connection is
  committed after its successor received `connected`;
- a wake-up may be lost or repeated, news never: `catch_up` reads the log itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from unisono.store.port import Record, StorageError


class StoreLost(StorageError):
    """The database is unavailable. Whether unanswered groups were committed is unknown; `reopen` later."""


class ModelRefused(Exception):
    """The model is not newer than the one in force, or has the version of another one. Nothing changed; the text says
    what to do."""


class ModelBundle(msgspec.Struct, frozen=True):
    """A model as a node published it: its files by relative path."""

    version: int
    digest: str
    files: dict[str, bytes]


class News(msgspec.Struct, frozen=True):
    """What other nodes did since the last `catch_up`, in commit order, and the head now.

    `more`: there is more, ask again. `erased`: text was erased from the log, and states folded before may contain it.
    `log_epoch`: the current one, when it was read. `messages`: those of other nodes since then (`Cluster.tell`).
    """

    head: int
    records: Sequence[Record] = ()
    replaced: Sequence[int] = ()
    model_version: int | None = None
    more: bool = False
    erased: bool = False
    log_epoch: int | None = None
    messages: Sequence[bytes] = ()


class Cluster(Protocol):
    """A log that other nodes write too."""

    def wake_fd(self) -> int:
        """A descriptor that is readable when there may be news; `catch_up` clears it. It never changes."""
        ...

    def catch_up(self, *, fresh: bool = False) -> News:
        """What other nodes committed, and which of this node's connections were replaced, since the last call.

        Outside any group. `fresh`: nothing committed before the call is missing. Otherwise cheap without a wake-up;
        call it a few times a second, since a wake-up can be lost.
        """
        ...

    def tell(self, messages: Sequence[bytes]) -> None:
        """Send short messages (5 KiB at most) to all other nodes, which get them as `News.messages`, soon or never:
        nothing is stored. Outside any group."""
        ...

    def connected_clients(self, limit: int) -> Sequence[tuple[str, str]]:
        """(client_id, name of its node) of the connected clients of all nodes, at most `limit`."""
        ...

    def claim(self, client_id: str, conn: int) -> int:
        """Make `conn` of this node the only connection of the client; returns its epoch. Outside any group."""
        ...

    def claim_many(self, claims: Sequence[tuple[str, int]]) -> Sequence[int]:
        """As `claim` for several (client_id, conn), in order, with one durable commit."""
        ...

    def release(self, client_id: str, conn: int) -> None:
        """Release the claim, if it is still in force; may take effect a little later."""
        ...

    def fence(self, holders: Sequence[tuple[str, int]]) -> None:
        """Set the (client_id, conn) pairs of the next group; its `Opening` says which of them were replaced."""
        ...

    def published_model(self) -> ModelBundle | None:
        """The newest model any node published."""
        ...

    def publish_model(self, bundle: ModelBundle) -> None:
        """Put a newer model in force on every node; publishing the one in force changes nothing.

        ModelRefused when it is not newer. Outside any group.
        """
        ...

    def reopen(self) -> None:
        """After StoreLost: connect again, with the same claims and the same position in the log.

        What a lost `commit` made durable comes as news. StoreLost: still unavailable. Any other StorageError: this is
        not the same log, and the node must be restarted.
        """
        ...
