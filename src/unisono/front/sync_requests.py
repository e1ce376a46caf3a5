"""What the catch-up of a connection needs from its front: access, subscriptions, heads and pages of history."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from unisono.front.catchup import Ask
from unisono.ipc.page_messages import AskPage, PageResult, SnapshotStart
from unisono.vocabulary import LogIdentity

if TYPE_CHECKING:
    from unisono.front.connection import ClientConnection


class SyncRequests:
    """The `CatchUpHost` of one connection. Answers that arrive while the connection closes change nothing."""

    __slots__ = ("_connection", "_last_ticket")

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._last_ticket = 0

    @property
    def subscriptions(self) -> tuple[str, ...]:
        return self._connection.subscriptions

    @property
    def wants_snapshots(self) -> bool:
        return self._connection.wants_snapshots

    def denied(self, partitions: tuple[str, ...]) -> list[str]:
        identity = self._connection.identity
        assert identity is not None
        return self._connection.services.access.denied_reading(identity, partitions)

    def subscribe(self, partitions: tuple[str, ...]) -> None:
        connection = self._connection
        before = connection.subscriptions
        connection.services.hub.subscribe(connection, partitions)
        if connection.sees_presence:
            presence = connection.services.presence
            presence.forget(connection.number, set(before) - set(partitions))
            presence.subscribed(connection, sorted(set(partitions) - set(before)))

    def admit_sync(self, size: int) -> None:
        self._connection.services.requests.admit_sync(size)

    def settle_sync(self, size: int) -> None:
        self._connection.services.requests.settle_sync(size)

    def cancel_sync(self, size: int) -> None:
        self._connection.services.requests.cancel_sync(self._last_ticket, size)

    def ask_head(self, then: Callable[[int], None]) -> None:
        connection = self._connection
        self._last_ticket = connection.services.requests.ask_head(connection.while_active(then))

    def ask_page(
        self, ask: Ask, upto: int, snapshot_starts: dict[str, int] | None, then: Callable[[PageResult], None]
    ) -> None:
        connection = self._connection

        def answered(page: PageResult | None) -> None:
            if page is None:
                connection.fail()
            else:
                then(page)

        settings = connection.services.settings
        # A page must leave room in the send buffer, or a slow link could never take one.
        room = settings.max_send_buffer_bytes // 2
        max_bytes = min(settings.max_sync_page_bytes, room)
        start = None
        if snapshot_starts is None:
            version, digest = self.model()
            start = SnapshotStart(version, min(settings.max_sync_snapshot_bytes, room), room, digest)
        log = self.log()
        self._last_ticket = connection.services.requests.ask_page(
            lambda ticket: AskPage(
                ticket,
                ask.partitions,
                ask.since,
                upto,
                ask.limit,
                max_bytes,
                snapshot_starts or {},
                start,
                log,
                connection.sees_authors,
                connection.takes_whole_batches,
            ),
            connection.while_active(answered),
        )

    def answer_sync(self, payload: bytes) -> None:
        self._connection.answer_sync(payload)

    def model(self) -> tuple[int | None, str]:
        offer = self._connection.owner.offer
        return (None, "") if offer is None else (offer.model_version, offer.model_digest)

    def log(self) -> LogIdentity | None:
        offer = self._connection.owner.offer
        return None if offer is None else offer.log
