"""What happened, from the frames of a history: who sent what, what was answered, what was delivered.

Answers carry no reference to their request. Results are matched by the ids of their items, pages by the order of the
syncs. An `error` may answer any request, also earlier ones last: where several wait, none of them is matched to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final, Literal

import msgspec
from msgspec import UNSET

from unisono.history.facts import (
    ReceivedError,
    ReceivedPage,
    SeenEvent,
    SentItem,
    SentRequest,
    SubscriptionChange,
    TimelineConnection,
)
from unisono.history.known import FinalRead
from unisono.history.messages import (
    PageResponse,
    decode_committed,
    decode_connected,
    decode_envelope,
    decode_error,
    decode_page,
    decode_rejected,
    decode_result,
    decode_submit,
    decode_submit_one,
    decode_sync,
    hash_of,
    requested_partitions,
    sent_item,
)
from unisono.history.records import (
    ClientCursor,
    ClientStore,
    ConnectionClosed,
    ConnectionOpened,
    Fault,
    Frame,
    HistoryStart,
    LakeEvent,
    LakeRead,
    Located,
    LogEvent,
    LogRead,
    Operation,
    ScopeChanged,
    SnapshotRead,
)
from unisono.protocol.client_codec import (
    CommittedEvent,
    SubmitResult,
    decode_snapshots,
)
from unisono.protocol.codec import Envelope
from unisono.protocol.extensions import ATOMIC

ENDING_ERRORS: Final = ("server_error", "auth_failed")
"""The log failed; the token has expired."""


class Timeline:
    """A history as facts, in the order of time."""

    def __init__(self) -> None:
        self.complete = True
        self.connections: dict[str, TimelineConnection] = {}
        self.sent: dict[str, list[SentItem]] = defaultdict(list)
        self.requests: list[SentRequest] = []
        self.rejections: dict[str, int] = defaultdict(int)
        self.seen: list[SeenEvent] = []
        self.final = FinalRead()
        self.cursors: dict[str, list[ClientCursor]] = defaultdict(list)
        self.stores: list[ClientStore] = []
        self.snapshots: list[SnapshotRead] = []
        self.operations: list[Located] = []
        self.faults: list[Fault] = []
        self.access: dict[str, list[ScopeChanged]] = defaultdict(list)
        self.logs: set[tuple[str | None, int | None]] = set()
        self.frames = 0

    def add(self, located: Located) -> None:
        """Take one record in; records of one connection in the order of time."""
        record, where = located.record, located.where
        match record:
            case HistoryStart():
                self.complete = self.complete and record.complete
            case ConnectionOpened():
                self.connections[record.connection] = TimelineConnection(record)
            case ConnectionClosed():
                self._connection(record.connection, record.at).closed_at = record.at
            case Frame():
                self.frames += 1
                self._frame(record, where)
            case ScopeChanged():
                self.access[record.client_id].append(record)
            case Operation():
                self.operations.append(located)
                self._operation(record, where)
            case ClientCursor():
                self.cursors[record.client].append(record)
            case Fault():
                self.faults.append(record)
            case LogEvent():
                self.final.log.append(record)
            case LakeEvent():
                self.final.lake.append(record)
            case LogRead():
                self.final.head, self.final.pruned_to = record.head, record.pruned_to
            case LakeRead():
                self.final.lake_upto = record.upto
            case SnapshotRead():
                self.snapshots.append(record)
            case ClientStore():
                self.stores.append(record)

    def _connection(self, name: str, at: float) -> TimelineConnection:
        found = self.connections.get(name)
        if found is None:
            found = self.connections[name] = TimelineConnection(ConnectionOpened(at, name, client_id=""))
        return found

    def _operation(self, record: Operation, where: str) -> None:
        if record.phase == "invoked":
            self.sent[record.id].append(SentItem(record.at, where, record.client, record.id, None, None))
        elif record.phase == "failed":
            self.rejections[record.id] += 1
        elif record.phase == "ok" and record.committed_id is not None:
            seen = SeenEvent(record.at, where, record.client, "result", record.committed_id, record.id)
            self.seen.append(seen)

    def _frame(self, frame: Frame, where: str) -> None:
        connection = self._connection(frame.connection, frame.at)
        try:
            envelope = decode_envelope(frame.message)
            if frame.direction == "sent":
                self._sent(connection, envelope, frame, where)
            else:
                self._received(connection, envelope, frame, where)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return  # no message of the protocol: whoever sent it is answered with an error

    def _sent(self, connection: TimelineConnection, envelope: Envelope, frame: Frame, where: str) -> None:
        at, name = frame.at, frame.connection
        match envelope.type:
            case "submit_events":
                submit = decode_submit(envelope.payload)
                sent_items = [sent_item(each, at, where, name) for each in submit.events]
                atomic = connection.atomic and submit.atomic is True
                request = SentRequest(at, where, name, sent_items, atomic)
                connection.requests.append(request)
            case "submit_event":
                item = sent_item(decode_submit_one(envelope.payload), at, where, name)
                request = SentRequest(at, where, name, [item])
                same_id = connection.singles[item.id]
                same_id.append(request)
                if len(same_id) > 1:  # the answers do not say which of them they answer
                    for each in same_id:
                        each.doubtful = True
            case "connect":
                if connection.connected_at is None:
                    connection.connect_sent_at = at
                return
            case "sync":
                connection.syncs.append((at, decode_sync(envelope.payload)))
                return
            case _:
                return
        self.requests.append(request)
        for sent in request.items:
            self.sent[sent.id].append(sent)
            connection.sent_ids.add(sent.id)

    def _received(self, connection: TimelineConnection, envelope: Envelope, frame: Frame, where: str) -> None:
        at = frame.at
        match envelope.type:
            case "connected":
                connected = decode_connected(envelope.payload)
                connection.connected_at = at
                connection.head = connected.server_last_committed_id
                granted = () if connected.capabilities is None else connected.capabilities.extensions
                connection.atomic = ATOMIC in granted
                self.logs.add((connected.log_id, connected.log_epoch))
            case "submit_events_result":
                self._result(connection, decode_result(envelope.payload), at, where)
            case "event_committed":
                event = decode_committed(envelope.payload)
                request = _next_single(connection, event.id)
                if request is not None:
                    request.committed = [event.committed_id]
                    connection.answered_at.append((request.at, at, where))
                self._see(connection, event, "result", at, where)
            case "event_rejected":
                rejected = decode_rejected(envelope.payload)
                _next_single(connection, rejected.id)
                self.rejections[rejected.id] += 1
            case "event_broadcast":
                self._see(connection, decode_committed(envelope.payload), "broadcast", at, where)
            case "sync_response":
                self._page(connection, decode_page(envelope.payload), at, where)
            case "error":
                self._error(connection, decode_error(envelope.payload))

    def _error(self, connection: TimelineConnection, error: ReceivedError) -> None:
        """The answer to the one request that waits for one, or to any of several.

        Those that end the connection answer none. A sync that they leave unanswered may have set its subscriptions.
        """
        if isinstance(error.details, dict) and error.details.get("revoked"):
            _note_revoked(connection, error.details.get("partitions") or ())
            return
        submits = [*connection.requests, *chain.from_iterable(connection.singles.values())]
        only = len(submits) + len(connection.syncs) == 1
        if not only or error.code in ENDING_ERRORS:
            _note_unanswered_subscription(connection)
        connection.syncs.clear()
        if only:
            connection.requests.clear()
            connection.singles.clear()
            return
        for request in submits:
            request.doubtful = True

    def _result(self, connection: TimelineConnection, result: SubmitResult, at: float, where: str) -> None:
        ids = [item.id for item in result.results]
        while connection.requests:
            request = connection.requests.popleft()
            if [item.id for item in request.items] == ids:
                request.committed = [item.committed_id for item in result.results]
                if any(request.committed):
                    connection.answered_at.append((request.at, at, where))
                break
        for item in result.results:
            if item.committed_id is None:
                self.rejections[item.id] += 1
            else:
                name = connection.opened.connection
                self.seen.append(SeenEvent(at, where, name, "result", item.committed_id, item.id))

    def _see(
        self,
        connection: TimelineConnection,
        event: CommittedEvent,
        how: Literal["result", "page", "broadcast"],
        at: float,
        where: str,
    ) -> None:
        digest = hash_of(bytes(event.event), event.partitions)
        seen = SeenEvent(
            at,
            where,
            connection.opened.connection,
            how,
            event.committed_id,
            event.id,
            digest,
            event.partitions,
        )
        self.seen.append(seen)
        if how == "broadcast":
            connection.broadcasts.append(seen)

    def _page(self, connection: TimelineConnection, page: PageResponse, at: float, where: str) -> None:
        for event in page.events:
            self._see(connection, event, "page", at, where)
        subscriptions = frozenset(page.effective_subscriptions)
        changed = not connection.subscribed or connection.subscribed[-1].partitions != subscriptions
        if not connection.syncs:  # its sync was not recorded, or is in doubt
            connection.subscribed.append(SubscriptionChange(page.sync_to_committed_id, subscriptions, False))
            return
        requested_at, sync = connection.syncs.popleft()
        partitions = requested_partitions(sync)
        before = connection.pages[-1] if connection.pages else None
        continues = (
            before is not None
            and before.has_more
            and before.partitions == partitions
            and before.next_since == sync.since_committed_id
            and before.sync_to == page.sync_to_committed_id
        )
        if not continues:
            snapshots = () if page.snapshots is UNSET else decode_snapshots(page.snapshots)
            connection.cycle_starts = {each.partition: each.committed_id for each in snapshots}
        if changed or (not continues and sync.subscription_partitions is not UNSET):
            change = SubscriptionChange(page.sync_to_committed_id, subscriptions, not continues)
            connection.subscribed.append(change)
        connection.pages.append(
            ReceivedPage(
                at=at,
                where=where,
                connection=connection.opened.connection,
                requested_at=requested_at,
                since=sync.since_committed_id,
                partitions=partitions,
                first_of_cycle=not continues,
                snapshot_starts=connection.cycle_starts,
                committed_ids=[event.committed_id for event in page.events],
                next_since=page.next_since_committed_id,
                sync_to=page.sync_to_committed_id,
                has_more=page.has_more,
            )
        )
        connection.answered_at.append((requested_at, at, where))


def build(records: Iterable[Located]) -> Timeline:
    """The timeline of a history, its files put together in the order of time."""
    timed: list[tuple[float, int, Located]] = []
    timeline = Timeline()
    for number, located in enumerate(records):
        at: float | None = getattr(located.record, "at", None)
        if at is None:
            timeline.add(located)
        else:
            timed.append((at, number, located))
    for _, _, located in sorted(timed, key=lambda each: each[:2]):
        timeline.add(located)
    for connection in timeline.connections.values():
        _note_unanswered_subscription(connection)
    return timeline


def _next_single(connection: TimelineConnection, id: str) -> SentRequest | None:
    """The oldest unanswered submission of an event by `submit_event`."""
    waiting = connection.singles.get(id)
    if not waiting:
        return None
    request = waiting.popleft()
    if not waiting:
        del connection.singles[id]
    return request


def _note_unanswered_subscription(connection: TimelineConnection) -> None:
    """A sync without an answer may have set its subscriptions at any moment after it was sent."""
    for sent_at, sync in connection.syncs:
        if sync.subscription_partitions is not UNSET:
            before = [seen.committed_id for seen in connection.broadcasts if seen.at < sent_at]
            since = max([*before, *(change.since for change in connection.subscribed)], default=0)
            connection.subscribed.append(SubscriptionChange(since, frozenset(), False))
            return


def _note_revoked(connection: TimelineConnection, partitions: Sequence[str]) -> None:
    """Partitions are taken out of the subscriptions: no broadcast of them comes after this (AUTHZ-09)."""
    if connection.subscribed:
        last = connection.subscribed[-1]
        since = max([last.since, *(seen.committed_id for seen in connection.broadcasts[-1:])])
        left = last.partitions - frozenset(partitions)
        connection.subscribed.append(SubscriptionChange(since, left, last.certain))
