"""The state of a client's sync: plain data, replaced by each transition."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal, TypeAlias, TypedDict

import msgspec
from msgspec import UNSET, UnsetType

from unisono.client.options import Options
from unisono.protocol.client_codec import CommittedEvent, Limits
from unisono.protocol.partitions import ENTRIES_MAX
from unisono.vocabulary import LogIdentity

TOO_MANY: Final = "too_many_partitions"
"""Why a partition is left out: the server takes no more names on one connection."""

Request: TypeAlias = Literal["connect", "sync", "submit"]


class Phase(StrEnum):
    """The connection's phase, in the words of the client's status."""

    OFFLINE = "offline"
    CONNECTING = "connecting"
    SYNCING = "syncing"
    LIVE = "live"


class SyncCycle(msgspec.Struct, frozen=True):
    """One run of pages up to a watermark.

    - `subscription` is sent with the first request.
    - `sync_to`, the watermark, is known after the first page.
    - `discard_answer`: the unanswered request belongs to committed data that has been dropped since.
    - `end_after_page`: the partitions have changed, so the cycle ends with the page under way.
    - `overflow`: the buffer was full and broadcasts were dropped, so another cycle must follow.
    - `snapshots`: the first page may contain snapshots.
    """

    partitions: tuple[str, ...]
    since: int
    subscription: tuple[str, ...] | None
    sync_to: int | None = None
    discard_answer: bool = False
    end_after_page: bool = False
    overflow: bool = False
    snapshots: bool = False


class SetAsideDraft(msgspec.Struct, frozen=True):
    """A pending draft that is left out of submits because the server fails on it.

    It is sent again at `retry_at`. `proven`: the server failed on it again after it had answered for another draft.
    """

    reason: str
    retry_at: float
    wait_s: float
    proven: bool = False


class SyncState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the sync of one client depends on. The fields from `phase` on belong to one connection.

    - `cursors`: every followed partition, with the committed_id up to which the store has all of its events.
    - `highest_cursors`: the highest cursor each partition ever had with this server. It stays when the cursor goes
      back to 0 for another model.
    - `model_digest`, `log`: the server's model content and log; None where the server names none.
    - `single_submits`: how many of the next submits carry one draft each, to find the draft a batch is refused for.
    - `batch_failures`: how often in a row the server failed on a submit of several drafts; `draft_failures`: how
      often on a draft that was sent alone; `set_aside_drafts`: the drafts left out of submits for it.
    - `atomic_granted`: whether the server takes atomic batches (EXT-10); None before it has said so.
    - `submitted_batch`: whether `submitted` is one atomic batch.
    - `connect_lost_at`: when a connection last ended between `connect` and its answer; None if none has.
    - `storing`: an Apply is not yet in the store.
    - `wants_snapshots`: whether this client asks for them; `server_sends_snapshots`: whether the server has agreed.
    - `snapshot_based`: partitions whose stored history begins with a snapshot, which a new start must drop.
    - `full_history_only`: partitions whose snapshot could not be used, so that all of their events are requested.
    - `pending_request`: the one request that is unanswered, sent at `requested_at`.
    - `refused_partitions`: partitions the server refuses to sync, with its reason; requested again on the next
      connection.
    - `left_out`: partitions beyond what the server lets one connection subscribe to: those added last.
    - `names_max`: how many partitions one sync names.
    - `one_by_one`: the server does not say which partition it refuses, so each is requested alone.
    - `live`: partitions that are subscribed and whose pages have reached the watermark.
    - `tail_fetch_due`: live partitions whose events above the cursor are to be fetched by pages, because
      `tail_events` of them have come without ordered delivery.
    - `buffer`: broadcasts that wait for the end of the cycle.
    - `highest_seen_id`: the highest committed_id of any broadcast or result.
    """

    profile: str
    options: Options = Options()
    cursors: dict[str, int] = {}
    highest_cursors: dict[str, int] = {}
    model_version: int | UnsetType | None = UNSET
    model_digest: str | None = None
    log: LogIdentity | None = None
    drafts_waiting: bool = False
    batch_max: int = 100
    single_submits: int = 0
    batch_failures: int = 0
    draft_failures: dict[str, int] = {}
    set_aside_drafts: dict[str, SetAsideDraft] = {}
    atomic_granted: bool | None = None
    connect_lost_at: float | None = None
    storing: bool = False
    wants_snapshots: bool = False
    snapshot_based: frozenset[str] = frozenset()
    full_history_only: frozenset[str] = frozenset()

    phase: Phase = Phase.OFFLINE
    pending_request: Request | None = None
    requested_at: float = 0.0
    retry_at: float | None = None
    submitted: tuple[str, ...] = ()
    submitted_batch: bool = False
    failure: str | None = None
    limits: Limits = Limits()
    ordered_delivery: bool = False
    server_sends_snapshots: bool = False
    refused_partitions: dict[str, str] = {}
    left_out: dict[str, str] = {}
    names_max: int = ENTRIES_MAX
    one_by_one: bool = False
    live: frozenset[str] = frozenset()
    tail_fetch_due: frozenset[str] = frozenset()
    subscribed: tuple[str, ...] = ()
    cycle: SyncCycle | None = None
    buffer: tuple[CommittedEvent, ...] = ()
    buffered_bytes: int = 0
    highest_seen_id: int = 0
    tail_events: int = 0

    @property
    def active(self) -> tuple[str, ...]:
        """The partitions that are followed, neither refused nor left out, sorted."""
        inactive = self.refused_partitions.keys() | self.left_out.keys()
        return tuple(sorted(name for name in self.cursors if name not in inactive))

    @property
    def atomic_max(self) -> int:
        """How many drafts an atomic batch may have; 0 where the server takes none."""
        if not self.atomic_granted:
            return 0
        in_flight = self.limits.max_in_flight_drafts
        most = self.limits.max_batch_size
        return most if in_flight is None else min(most, in_flight)


class SyncStateChanges(TypedDict, total=False):
    """The fields of a SyncState a transition may change, so that mypy checks their names and types."""

    cursors: dict[str, int]
    highest_cursors: dict[str, int]
    model_version: int | UnsetType | None
    model_digest: str | None
    log: LogIdentity | None
    drafts_waiting: bool
    batch_max: int
    single_submits: int
    batch_failures: int
    draft_failures: dict[str, int]
    set_aside_drafts: dict[str, SetAsideDraft]
    atomic_granted: bool | None
    connect_lost_at: float | None
    storing: bool
    wants_snapshots: bool
    snapshot_based: frozenset[str]
    full_history_only: frozenset[str]
    phase: Phase
    pending_request: Request | None
    requested_at: float
    retry_at: float | None
    submitted: tuple[str, ...]
    submitted_batch: bool
    failure: str | None
    limits: Limits
    ordered_delivery: bool
    server_sends_snapshots: bool
    refused_partitions: dict[str, str]
    left_out: dict[str, str]
    names_max: int
    one_by_one: bool
    live: frozenset[str]
    tail_fetch_due: frozenset[str]
    subscribed: tuple[str, ...]
    cycle: SyncCycle | None
    buffer: tuple[CommittedEvent, ...]
    buffered_bytes: int
    highest_seen_id: int
    tail_events: int
