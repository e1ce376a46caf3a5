"""Everything a client raises.

ClientError
├── InvalidEvent        refused before it was stored; carries FieldErrors
├── TransactionRefused  the server takes no transactions, or none so large; nothing was stored
├── UnknownPartition    not a partition of this client
├── UnknownDraft        no rejected draft has this id
├── UndoRefused         an event cannot be taken back, or done again; carries why
├── HistoryUnavailable  older history is on the server only, and it cannot be asked now, or refuses
├── ClientClosed        called after the client was closed, or still waiting when it was
├── ClientStopped       waiting for a connection that is not tried any more
├── NotCaughtUp         live, but without some of its partitions or drafts; carries which and why
└── StoreError          the local store cannot be used; the text says what to do
    ├── StoreInUse      another client has it open
    ├── StoreForeign    it belongs to another client_id, or is no store
    ├── StoreTooNew     written by a newer version of this library
    ├── StoreFull       no room for a draft; the client goes on
    └── StoreFailed     the disk failed under it; the client has stopped
        └── StoreDamaged    what is in the file is not what was written to it

ModelMissing is no error but a warning (`warnings.warn`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unisono.vocabulary import FieldError


class ClientError(Exception):
    """Base of all errors of the client."""


class InvalidEvent(ClientError):
    """The event was refused locally: nothing was stored and nothing will be sent (CLIENT-02)."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(f"{error.field}: {error.message}" for error in self.errors))


class TransactionRefused(ClientError):
    """The server cannot take this transaction as a whole; nothing was stored, and it is never sent in parts."""


class UnknownPartition(ClientError):
    """The client does not follow this partition."""

    def __init__(self, partition: str) -> None:
        super().__init__(
            f"{partition!r} is not a partition of this client; add_partition({partition!r}) first"
        )
        self.partition = partition


class UnknownDraft(ClientError):
    """There is no rejected draft of this id: pending drafts are on their way and cannot be taken back."""

    def __init__(self, id: str) -> None:
        super().__init__(f"no rejected draft has the id {id!r}")
        self.id = id


class UndoRefused(ClientError):
    """An event is not taken back, or not done again. `reason` is one of

    nothing      there is none
    rejected     the server has rejected the event, so there is nothing to take back
    changed      somebody has changed since what it changed
    no_inverse   nothing is known that takes it back
    refused      what takes it back is refused by the model, for the reasons in `errors`
    gone         the event is no longer in the store, or its partition is not followed any more
    """

    def __init__(self, reason: str, message: str, errors: Sequence[FieldError] = ()) -> None:
        super().__init__(message)
        self.reason = reason
        self.errors = tuple(errors)


class HistoryUnavailable(ClientError):
    """The history is not in this client's store, and the server does not give it; `code` is why, where it said so."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class ClientClosed(ClientError):
    """The client is closed; what was pending stays in its store."""

    def __init__(self, message: str = "the client is closed") -> None:
        super().__init__(message)


class ClientStopped(ClientError):
    """No further connection is tried; `resume` tries again."""


class NotCaughtUp(ClientError):
    """The client is live and will not get further by waiting.

    `partitions` are those the server refuses, or has no room for, with the reason (`status.set_aside`); `drafts`
    are the ids of those that are set aside, with the reason (`status.drafts_set_aside`).
    """

    def __init__(self, message: str, partitions: Mapping[str, str], drafts: Mapping[str, str]) -> None:
        super().__init__(message)
        self.partitions = dict(partitions)
        self.drafts = dict(drafts)


class ModelMissing(UserWarning):
    """A client of the canonical profile without a model: its views stay empty."""


class StoreError(ClientError):
    """The local store cannot be used."""


class StoreInUse(StoreError):
    """Another client, in this process or another, has the store open."""


class StoreForeign(StoreError):
    """The store belongs to another client_id, or the file is no store of this library."""


class StoreTooNew(StoreError):
    """The store was written by a newer version of this library."""


class StoreFull(StoreError):
    """There is no room on the disk: nothing was stored, and the same call works once there is."""


class StoreFailed(StoreError):
    """The disk or the file failed. What was acknowledged is safe; the client has stopped.

    After a failed sync the operating system may have forgotten what was written, so nothing written later could
    be promised. Opening the store again finds what is really there.
    """


class StoreDamaged(StoreFailed):
    """The file holds something else than what was written to it; the text says what can be done."""
