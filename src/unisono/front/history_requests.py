"""Requests of one connection for the newest events of a partition (EXT-20 to EXT-23)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from unisono.ipc.page_messages import AskNewest, PageResult
from unisono.protocol.codec import encode_history_result, encode_payload
from unisono.protocol.errors import (
    BadRequest,
    Forbidden,
    RateLimited,
    ServerError,
    ValidationFailed,
    WireError,
)
from unisono.protocol.messages import AskHistory
from unisono.protocol.partitions import PartitionError, normalise
from unisono.vocabulary import FieldError

if TYPE_CHECKING:
    from unisono.front.connection import ClientConnection

LIMIT_DEFAULT: Final = 50
"""Events of a page when the client gives no limit: a screen or two."""

MAX_WAITING: Final = 4
"""Requests of one connection that wait while another one is answered."""

MAX_REQUEST_ID: Final = 64
"""Characters of a request_id, which comes back in the answer."""

REQUEST_BYTES: Final = 1024
"""Estimated memory of a request beside the name of its partition."""

RETRY_MS: Final = 200
"""Retry after: a page takes far less."""


class HistoryRequest(msgspec.Struct, frozen=True):
    """A request that passed every check: normalised, authorised, clamped."""

    request_id: str
    partition: str
    before: int | None
    limit: int

    @property
    def size(self) -> int:
        return REQUEST_BYTES + len(self.partition)


class HistoryRequests:
    """Answers one request at a time, in order; each exactly once, with a page or with an error of its own.

    An error is part of the answer, so that nobody takes it for the answer to a sync. Made with the first request.
    """

    __slots__ = ("_current", "_ticket", "_waiting")

    def __init__(self) -> None:
        self._current: HistoryRequest | None = None
        self._waiting: deque[HistoryRequest] = deque()
        self._ticket = 0

    @property
    def busy(self) -> bool:
        return self._current is not None

    def start(self, connection: ClientConnection, asked: AskHistory) -> None:
        if not 0 < len(asked.request_id) <= MAX_REQUEST_ID:
            raise BadRequest(f"request_id must have 1 to {MAX_REQUEST_ID} characters")
        try:
            request = _checked(connection, asked)
            if len(self._waiting) >= MAX_WAITING:
                raise RateLimited("too many requests for history at once; wait for each answer", RETRY_MS)
            connection.services.requests.admit_sync(request.size)
        except WireError as error:
            _refuse(connection, asked.request_id, error)
            return
        if self._current is None:
            self._begin(connection, request)
        else:
            self._waiting.append(request)

    def give_up(self, connection: ClientConnection) -> None:
        """The connection ends: drop what waits and cancel what is under way."""
        requests = connection.services.requests
        for waiting in self._waiting:
            requests.settle_sync(waiting.size)
        self._waiting.clear()
        if self._current is not None:
            size, self._current = self._current.size, None
            requests.cancel_sync(self._ticket, size)

    def revoke(self, connection: ClientConnection, denied: Callable[[tuple[str, ...]], list[str]]) -> None:
        """Refuse the requests for partitions that are denied by now."""
        requests, current = connection.services.requests, self._current
        if current is not None and (names := denied((current.partition,))):
            self._current = None
            requests.cancel_sync(self._ticket, current.size)
            _refuse(connection, current.request_id, Forbidden(names))
        kept: deque[HistoryRequest] = deque()
        for request in self._waiting:
            if names := denied((request.partition,)):
                requests.settle_sync(request.size)
                _refuse(connection, request.request_id, Forbidden(names))
            else:
                kept.append(request)
        self._waiting = kept
        if self._current is None:
            self._next(connection)

    def _begin(self, connection: ClientConnection, request: HistoryRequest) -> None:
        """Ask for the head first: what was committed before the request is in its answer."""
        self._current = request
        self._ticket = connection.services.requests.ask_head(
            connection.while_active(lambda head: self._ask_page(connection, request, head))
        )

    def _ask_page(self, connection: ClientConnection, request: HistoryRequest, head: int) -> None:
        settings, offer = connection.services.settings, connection.owner.offer
        upto = head if request.before is None else min(request.before - 1, head)
        # A page of a sync may be on its way at the same time, and takes up to half of the send buffer.
        bytes_max = min(settings.max_sync_page_bytes, settings.max_send_buffer_bytes // 4)
        log = None if offer is None else offer.log
        self._ticket = connection.services.requests.ask_page(
            lambda ticket: AskNewest(
                ticket, request.partition, upto, request.limit, bytes_max, log, connection.sees_authors
            ),
            connection.while_active(lambda page: self._answer(connection, request, page)),
        )

    def _answer(self, connection: ClientConnection, request: HistoryRequest, page: PageResult | None) -> None:
        if page is None:
            failure = ServerError("the history cannot be read at the moment; try again later")
            _refuse(connection, request.request_id, failure)
        else:
            next_before = page.last if page.has_more else None
            payload = encode_history_result(request.request_id, request.partition, page.events, next_before)
            connection.send_message("history_result", payload)
        if self._current is None:
            return  # the connection ended meanwhile
        self._current = None
        connection.services.requests.settle_sync(request.size)
        self._next(connection)
        connection.answered_page()

    def _next(self, connection: ClientConnection) -> None:
        if self._waiting:
            self._begin(connection, self._waiting.popleft())


def _checked(connection: ClientConnection, asked: AskHistory) -> HistoryRequest:
    services, identity = connection.services, connection.identity
    assert identity is not None
    try:
        (partition,) = normalise([asked.partition])
    except PartitionError as error:
        raise ValidationFailed([FieldError("partition", str(error))]) from None
    if asked.before is not None and asked.before < 1:
        raise BadRequest("before must be above 0")
    if asked.limit is not None and asked.limit < 1:
        raise BadRequest("limit must be above 0")
    denied = services.access.denied_reading(identity, (partition,))
    if denied:
        raise Forbidden(denied)
    limit = LIMIT_DEFAULT if asked.limit is None else asked.limit
    return HistoryRequest(
        asked.request_id, partition, asked.before, min(limit, services.settings.sync_limit_max)
    )


def _refuse(connection: ClientConnection, request_id: str, error: WireError) -> None:
    connection.services.counters.add(f"errors|{error.code}")
    payload = {"request_id": request_id, "error": error.payload()}
    connection.send_message("history_result", encode_payload(payload))
