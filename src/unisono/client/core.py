"""The client without its thread and its socket: store, views and sync state.

A core is called from one thread. `feed` is the only way to change the sync state: it performs the effects that
`advance` returns, in order, until none is left, and then updates views, status and readers.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from typing import assert_never

import apsw
import msgspec
from msgspec import UNSET

from unisono.client.config import Config, load
from unisono.client.core_connection import CoreConnection
from unisono.client.errors import ClientClosed, ClientError, TransactionRefused
from unisono.client.history import HistoryPage, ServerHistory, read_history
from unisono.client.model_match import matching_model
from unisono.client.outgoing import next_submit
from unisono.client.publish import Publisher
from unisono.client.status import Committed, Problem, Rejected, rejection
from unisono.client.store.checksums import store_failure
from unisono.client.store.store import Store, StoreContradiction
from unisono.client.submit import Drafting, SubmitRequest, Ticket
from unisono.client.sync.advance import Phase, SyncState, advance
from unisono.client.sync.bootstrap import can_continue_from, check_snapshots, may_use_snapshots
from unisono.client.sync.drafts import UNFIT
from unisono.client.sync.inputs_effects import (
    Apply,
    Contradicted,
    DraftRetried,
    DraftsWaiting,
    DropConnection,
    Effect,
    Input,
    NoteAuthor,
    NoteLog,
    NoteModel,
    PartitionAdded,
    PartitionRemoved,
    Received,
    ReportProblem,
    Reset,
    Retry,
    Rewind,
    SendConnect,
    SendSync,
    Stop,
    Stored,
    SubmitNext,
    Submitted,
    WakeAt,
    mark_consecutive,
)
from unisono.client.undo import UndoStack
from unisono.client.validation import CheckedEvent
from unisono.client.view.views import Views
from unisono.model.model import Model
from unisono.protocol.client_codec import (
    SyncResponse,
    author_in,
    sync_payload,
)

log = logging.getLogger("unisono.client")


class Core:
    """Store, views and sync state of one client.

    Invariant between calls: `state.cursors` are the store's, and every view shows what the store has.
    """

    def __init__(
        self, config: Config, connection: CoreConnection, now: Callable[[], float], wall_ms: Callable[[], int]
    ) -> None:
        self._config = config
        self._connection = connection
        self._now = now
        self._wall_ms = wall_ms
        model = load(config.model)
        self.store = Store(config.store, config.client_id)
        try:
            self.views = Views(self.store, model, config.options.snapshot_every, config.profile)
            names = self.store.partitions() if config.partitions is None else config.partitions
            rows = {name: self.store.follow(name) for name in names}
            self.store.rewind_stale(self.views.fingerprint)
            for name in names:
                self.views.open(name)
            known, version, digest = self.store.notes.model()
        except (apsw.Error, UnicodeDecodeError) as error:
            self.store.close()
            raise store_failure(config.store, "opening it", error) from error
        except BaseException:
            self.store.close()
            raise
        self.state = SyncState(
            profile=config.profile,
            options=config.options,
            cursors={name: row.cursor for name, row in rows.items()},
            highest_cursors={name: row.known for name, row in rows.items()},
            model_version=version if known else UNSET,
            model_digest=digest,
            log=self.store.notes.log(),
            drafts_waiting=bool(self.store.outbox.pending),
            wants_snapshots=config.options.snapshots and may_use_snapshots(config.profile, model),
            snapshot_based=frozenset(name for name, row in rows.items() if row.floor),
        )
        if isinstance(config.token, str):
            self.presume_author(config.token)
        self.drafting = Drafting(self.store, self.views, config.profile, wall_ms)
        self.drafting.watcher = self.undo_stack = UndoStack(self.store, self.views, self.submit, wall_ms)
        self._messages: list[tuple[str, bytes]] = []
        self._closed: ClientError | None = None
        self.publisher = Publisher(self)

    # -- the sync ------------------------------------------------------------------------------------------

    def feed(self, *happened: Input) -> None:
        """Process inputs one after the other, with all their effects.

        Several inputs share one transaction, and no message is sent before it is committed.
        """
        self._check_open()
        settled: list[tuple[str, Committed | Rejected]] = []
        with self.store.transaction() if len(happened) > 1 else nullcontext():
            for each in mark_consecutive(happened):
                self._process(each, settled)
        messages, self._messages = self._messages, []
        for kind, payload in messages:
            self._connection.send(kind, payload)
        self.views.refresh()
        self.publisher.publish()
        for id, outcome in settled:
            self.drafting.settle(id, outcome)

    def _process(self, happened: Input, settled: list[tuple[str, Committed | Rejected]]) -> None:
        waiting: deque[Input] = deque([happened])
        while waiting:
            self.state, effects = advance(self.state, self._check_snapshots(waiting.popleft()), self._now())
            for effect in effects:
                try:
                    answer = self._perform(effect, settled)
                except StoreContradiction as error:
                    waiting.append(Contradicted(str(error)))
                    break
                if answer is not None:
                    waiting.append(answer)

    def _check_snapshots(self, happened: Input) -> Input:
        """A page with its snapshots checked; any other input as it is."""
        state = self.state
        if not state.server_sends_snapshots or state.cycle is None or not isinstance(happened, Received):
            return happened
        message = happened.message
        if not isinstance(message, SyncResponse):
            return happened
        digest = state.model_digest if message.model_digest is None else message.model_digest
        return check_snapshots(
            message, state.cycle, state.profile, self.views.model, state.model_version, digest
        )

    def _send_sync(self, effect: SendSync) -> None:
        state = self.state
        fit = effect.snapshots and can_continue_from(
            state.profile, self.views.model, state.model_version, state.model_digest
        )
        decline = state.server_sends_snapshots and not effect.since and not fit
        payload = sync_payload(
            effect.partitions, effect.since, effect.limit, effect.subscription, decline_snapshots=decline
        )
        self._messages.append(("sync", payload))

    def _perform(self, effect: Effect, settled: list[tuple[str, Committed | Rejected]]) -> Input | None:
        match effect:
            case Apply():
                self._apply(effect, settled)
                return Stored()
            case SendSync():
                self._send_sync(effect)
            case SubmitNext():
                return self._submit_next(effect)
            case SendConnect():
                self._connection.connect(effect.last_committed_id, snapshots=effect.snapshots)
            case NoteModel():
                self.store.note_model(effect.version, effect.digest)
                self._match_model(effect.version, effect.digest)
            case Rewind():
                self.store.rewind(effect.version, effect.digest)
                self._match_model(effect.version, effect.digest)
            case NoteLog():
                self.store.note_log(effect.log)
            case NoteAuthor():
                self._note_author(effect.author)
            case Reset():
                self._reset(effect)
            case ReportProblem():
                self.report(effect.code, effect.message)
            case WakeAt():
                self._connection.wake_at(effect.at)
            case DropConnection():
                self._connection.drop_connection()
            case Retry():
                self._connection.retry(effect.new_token)
            case Stop():
                self.report("stopped", effect.reason)
                self._connection.stop(effect.reason)
            case _:
                assert_never(effect)
        return None

    def _reset(self, effect: Reset) -> None:
        """Drop what the server no longer has; log how many of this client's own events it had confirmed."""
        own = self.store.count_own() if effect.log is not None else 0
        self.store.reset(effect.log)
        self.views.reopen_all()
        if own:
            log.warning(
                "%s: %d events of this client were confirmed in the former log; those that the present one lacks are "
                "lost unless they are submitted again",
                self._config.client_id,
                own,
            )

    def _apply(self, effect: Apply, settled: list[tuple[str, Committed | Rejected]]) -> None:
        applied = self.store.apply(
            effect.events,
            effect.accepted,
            effect.refused,
            effect.cursors,
            effect.starts,
            self.views.fingerprint,
        )
        self.views.note(applied)
        for each in applied.settled:
            id = each.draft.id
            settled.append((id, Committed(id, each.committed_id, each.status_updated_at)))
        for draft in applied.rejected:
            settled.append((draft.id, rejection(draft)))

    def _submit_next(self, effect: SubmitNext) -> Submitted:
        submitted, payload = next_submit(self.store.outbox, effect)
        if payload:
            self._messages.append(("submit_events", payload))
        return submitted

    def _note_author(self, author: str) -> None:
        changed = author != self.store.author
        if changed or not self.store.author_known:
            self.store.note_author(author)
        if changed:
            self.views.reopen_with_drafts()

    def presume_author(self, token: str) -> None:
        """Until the server has said who this client is, drafts are judged by what the token says."""
        author = author_in(token, self.views.model.claims)
        if not self.store.author_known and author != self.store.author:
            self.store.author = author
            self.views.reopen_with_drafts()

    def report(self, code: str, message: str) -> None:
        """Log a problem and show it in the status, which has the last one."""
        log.info("%s: %s: %s", self._config.client_id, code, message)
        self.publisher.problem = Problem(code, message, self._wall_ms())

    def _match_model(self, version: int | None, digest: str | None) -> None:
        """Where the server's model is another than ours, read ours again; report it when it still is another."""
        found = matching_model(self.views.model, self._config.model, version, digest)
        if isinstance(found, Model):
            self.views.reopen_all(found)
        elif found is not None:
            self.report("model_mismatch", found)

    # -- drafts --------------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[SubmitRequest]) -> list[Ticket | ClientError]:
        """Check drafts and store them in one durable write; each has an answer of its own."""
        self._check_open()
        answers = self.drafting.submit(requests, self.state.limits.max_message_bytes)
        self.feed(DraftsWaiting())
        return answers

    def submit_together(self, requests: Sequence[SubmitRequest]) -> list[Ticket]:
        """Store the drafts of one transaction in one durable write, or none of them (CLIENT-17)."""
        self._check_open()
        state = self.state
        if state.phase in (Phase.SYNCING, Phase.LIVE) and not state.atomic_granted:
            raise TransactionRefused(UNFIT["atomic_unsupported"])
        if state.atomic_granted and len(requests) > state.atomic_max:
            raise TransactionRefused(
                f"{len(requests)} events, and the server takes {state.atomic_max} in one batch"
            )
        tickets = self.drafting.submit_together(requests, state.limits.max_message_bytes)
        self.feed(DraftsWaiting())
        return tickets

    def check(self, request: SubmitRequest) -> CheckedEvent:
        """Refuse an event of a transaction at once where no state could make it right."""
        self._check_open()
        return self.drafting.check(request, self.state.limits.max_message_bytes)

    def pending(self) -> list[Ticket]:
        """The drafts the server has not answered, oldest first."""
        self._check_open()
        return self.drafting.pending()

    def discard(self, id: str) -> None:
        self._check_open()
        self.drafting.discard(id)
        self.publisher.publish()

    def retry(self, id: str) -> Ticket:
        """Submit a rejected draft again, as a new one with its old id; send a set-aside one at once.

        Those of its transaction go with it.
        """
        self._check_open()
        if id in self.state.set_aside_drafts and (ticket := self.drafting.ticket(id)) is not None:
            self.feed(DraftRetried(id))
            return ticket
        requests, together = self.drafting.again(id)
        if together:
            return next(each for each in self.submit_together(requests) if each.draft.id == id)
        (answer,) = self.submit(requests)
        if isinstance(answer, ClientError):
            raise answer
        return answer

    def history(
        self, server: ServerHistory, partition: str, before: int | None, limit: int
    ) -> Future[HistoryPage]:
        """A page of committed events, newest first."""
        self._check_open()
        return read_history(self.store, server, partition, before, limit)

    # -- partitions ----------------------------------------------------------------------------------------

    def add_partition(self, partition: str) -> None:
        self._check_open()
        known = partition in self.store.followed
        row = self.store.follow(partition)
        if not known:
            self.views.open(partition)
        if not known or partition in self.state.refused_partitions:
            self.feed(PartitionAdded(partition, row.cursor, row.known, snapshot_based=row.floor > 0))

    def remove_partition(self, partition: str) -> None:
        """Leave a partition and forget its events; drafts in it are still sent."""
        self._check_open()
        if partition in self.store.followed:
            self.views.drop(partition)
            self.store.leave(partition)
            self.feed(PartitionRemoved(partition))

    # -- the end -------------------------------------------------------------------------------------------

    def close(self, error: ClientError | None = None) -> None:
        """Store snapshots, which make the next start fast, and close the file. Drafts stay in it."""
        if self._closed is not None:
            return
        if error is not None:
            self.drafting.close(error)
            self.publisher.release(error)
            self.report("stopped", str(error))
            self.publisher.stopped = str(error)
        self.state = msgspec.structs.replace(self.state, phase=Phase.OFFLINE)
        self.publisher.publish()
        self._closed = error or ClientClosed()
        try:
            if error is None:
                self.views.close()
        finally:
            self.store.close(failed=error is not None)
            self.drafting.close(self._closed)
            self.publisher.close(self._closed)

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed
