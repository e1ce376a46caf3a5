"""What happened in a partition, newest first: from the client's store, and from the server beyond it.

The store has every event of a followed partition from its floor up to `known`; older ones are replaced by the state
that the server started the partition from. Those, and partitions that are not followed, are read from the server
(extension `history`) and not stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import Any, Final

import msgspec

from unisono.client.errors import HistoryUnavailable
from unisono.client.store.store import Store
from unisono.client.validation import partition_name
from unisono.client.view.partition import parse
from unisono.model.schema import EVENT_TYPE
from unisono.protocol.client_codec import CommittedEvent, Connected, HistoryResult, history_payload
from unisono.protocol.extensions import HISTORY
from unisono.vocabulary import JsonObject

LIMIT_DEFAULT: Final = 50
"""Entries of a page: a screen or two."""

TIMEOUT_S: Final = 30.0
"""How long the server may take for a page; archived history can be on remote storage."""


class HistoryEntry(msgspec.Struct, frozen=True):
    """One committed event: who, what and when.

    `user_id` is the person behind `client_id`, and `claims` what the model stores of them, where the server knows
    them. `committed_at` is in milliseconds.
    """

    committed_id: int
    id: str
    client_id: str
    partitions: tuple[str, ...]
    event: JsonObject
    committed_at: int
    user_id: str | None = None
    claims: dict[str, Any] | None = None

    @property
    def type(self) -> str:
        """The schema of a canonical event; else its type, such as `treePush`."""
        if self.event.get("type") == EVENT_TYPE:
            return str(self._payload.get("schema", ""))
        return str(self.event.get("type", ""))

    @property
    def data(self) -> Any:
        """The data of a canonical event; else its payload."""
        return self._payload.get("data") if self.event.get("type") == EVENT_TYPE else self._payload

    @property
    def _payload(self) -> JsonObject:
        payload = self.event.get("payload")
        return payload if isinstance(payload, dict) else {}

    @classmethod
    def of(cls, event: CommittedEvent) -> HistoryEntry:
        return cls(
            event.committed_id,
            event.id,
            event.client_id,
            event.partitions,
            parse(bytes(event.event)),
            int(event.status_updated_at),
            event.user_id,
            event.claims,
        )


class HistoryPage(msgspec.Struct, frozen=True):
    """A stretch of history, newest first.

    `next_before`: ask with this for the older ones; None where the history begins.
    """

    partition: str
    entries: tuple[HistoryEntry, ...]
    next_before: int | None = None


def checked_request(partition: str, before: int | None, limit: int) -> str:
    """The partition's name, normalised; ValueError for bounds that make no page."""
    if limit < 1:
        raise ValueError("limit must be above 0")
    if before is not None and before < 1:
        raise ValueError("before must be above 0")
    return partition_name(partition)


class ServerHistory:
    """Asks the server, one request at a time. Used in the engine's thread only."""

    def __init__(self, send: Callable[[str, bytes], None]) -> None:
        self._send = send
        self._numbers = count(1)
        self._waiting: deque[tuple[str, str, int | None, int, Future[HistoryPage]]] = deque()
        self._sent = False
        self.connected = False
        """Whether the server of this connection knows the extension."""

    def opened(self, connected: Connected) -> None:
        capabilities = connected.capabilities
        self.connected = capabilities is not None and HISTORY in capabilities.extensions
        self._send_next()

    def lost(self) -> None:
        """The connection is gone: whoever waits gets an error, and can ask again."""
        self.connected = self._sent = False
        waiting, self._waiting = self._waiting, deque()
        for *_, future in waiting:
            future.set_exception(HistoryUnavailable("the connection was lost before the server had answered"))

    def ask(self, partition: str, before: int | None, limit: int) -> Future[HistoryPage]:
        future: Future[HistoryPage] = Future()
        if not self.connected:
            future.set_exception(
                HistoryUnavailable("the client is not connected to a server with the extension history")
            )
            return future
        self._waiting.append((f"h{next(self._numbers)}", partition, before, limit, future))
        self._send_next()
        return future

    def _send_next(self) -> None:
        if self.connected and self._waiting and not self._sent:
            id, partition, before, limit, _ = self._waiting[0]
            self._sent = True
            self._send("history", history_payload(id, partition, before, limit))

    def take(self, result: HistoryResult) -> None:
        """The answer to the request that was sent last; any other is of a connection before."""
        if not self._sent or self._waiting[0][0] != result.request_id:
            return
        *_, future = self._waiting.popleft()
        self._sent = False
        if result.error is not None:
            error = result.error
            future.set_exception(HistoryUnavailable(f"{error.code}: {error.message}", error.code))
        else:
            entries = tuple(map(HistoryEntry.of, result.events))
            future.set_result(HistoryPage(result.partition, entries, result.next_before))
        self._send_next()


def read_history(
    store: Store, server: ServerHistory, partition: str, before: int | None, limit: int
) -> Future[HistoryPage]:
    """At most `limit` entries below `before`; see the module's text."""
    row = store.followed.get(partition)
    if row is None or row.known == 0:
        return server.ask(partition, before, limit)
    upto = row.known if before is None else min(before - 1, row.known)
    found: list[HistoryEntry] = []
    if upto > row.floor:
        found = [HistoryEntry.of(event) for event in store.newest_events(partition, upto, limit + 1)]
    if len(found) > limit:
        return _done(HistoryPage(partition, tuple(found[:limit]), found[limit - 1].committed_id))
    if row.floor == 0:
        return _done(HistoryPage(partition, tuple(found)))
    stored = HistoryPage(partition, tuple(found), min(upto, row.floor) + 1)
    if len(found) == limit:
        return _done(stored)
    return _joined(stored, server.ask(partition, stored.next_before, limit - len(found)))


def _done(page: HistoryPage) -> Future[HistoryPage]:
    future: Future[HistoryPage] = Future()
    future.set_result(page)
    return future


def _joined(stored: HistoryPage, asked: Future[HistoryPage]) -> Future[HistoryPage]:
    """What the store has, then what the server has; without the server, a shorter page."""
    joined: Future[HistoryPage] = Future()

    def answered(asked: Future[HistoryPage]) -> None:
        error = asked.exception()
        if error is None:
            rest = asked.result()
            entries = (*stored.entries, *rest.entries)
            joined.set_result(HistoryPage(stored.partition, entries, rest.next_before))
        elif stored.entries:
            joined.set_result(stored)
        else:
            joined.set_exception(error)

    asked.add_done_callback(answered)
    return joined
