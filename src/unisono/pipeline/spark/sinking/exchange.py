"""One task's exchange with the server: submit in order, wait for answers, submit again what was refused.

Requests are sent in the order of the rows, several before the first answer. The server answers accepted requests in
order (SUBMIT-09). One that it refuses as a whole (`rate_limited`, `bad_request`) is answered at once, so later
requests may be committed before it. It is sent again, one request at a time, together with all later events that were
rejected: they may depend on it. After a lost connection the task reconnects and sends again everything unanswered;
ids make that harmless (ORD-03).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Final, NoReturn, Self, TypeVar

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from unisono.pipeline.clock import now_ms
from unisono.pipeline.spark.sinking.answers import Rejection, SinkTarget
from unisono.pipeline.spark.sinking.connection import (
    ANSWER_S,
    ConnectionLost,
    ExchangeRefused,
    open_connection,
)
from unisono.pipeline.spark.sinking.items import SinkItem, encoded
from unisono.pipeline.spark.sinking.tokens import SinkTokenSource
from unisono.protocol.client_codec import (
    ENVELOPE_BYTES,
    BadMessage,
    Connected,
    ErrorMessage,
    Limits,
    MessageWriter,
    SubmitResult,
    SubmitResultItem,
    decode,
    field_errors,
    plain_connect_payload,
    submit_payload,
)
from unisono.protocol.errors import CloseCode
from unisono.vocabulary import FieldError

HEARTBEAT_S: Final = 10.0
"""A third of the server's default window; rows may come slowly."""

MESSAGE_BYTES: Final = 1 << 20
IN_FLIGHT_DRAFTS: Final = 100
"""Limits of a server that names none (LIM-01, LIM-03)."""

BACKOFF_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Between tries to reach a server; the last one repeats."""

RATE_LIMITED_WAIT_MIN_S: Final = 0.02
"""Before a request that was `rate_limited` is sent again."""


class ExchangeFailed(Exception):
    """The server is unreachable, or another connection replaced this one; a retry of the task may succeed."""


class _Request:
    """Submitted items, with `results` once they are answered."""

    def __init__(self, items: list[SinkItem]) -> None:
        self.items = items
        self.results: Sequence[SubmitResultItem] | None = None


T = TypeVar("T")
M = TypeVar("M", Connected, SubmitResult)


class Exchange:
    """One task's session, across connections.

    Invariant: `_window` has the requests that were sent and not concluded, oldest first; `_refused` counts those of
    them that the server refused as a whole on this connection. `_unanswered` is since when, and for how many
    connections, no request was answered, so that a server that fails on every request is not retried forever.
    """

    def __init__(self, target: SinkTarget, source: SinkTokenSource) -> None:
        self._target = target
        self._source = source
        self._socket: ClientConnection | None = None
        self._resources = ExitStack()
        self._known = False
        self._limits = Limits()
        self._depth = target.in_flight
        self._window: deque[_Request] = deque()
        self._refused = 0
        self._wait_s = 0.0
        self._unanswered: tuple[float, int] | None = None
        self._writer = MessageWriter()
        self._done = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self.committed = 0

    def __enter__(self) -> Self:
        try:
            self._connect()
        except ConnectionLost as lost:
            self._reconnect(lost)
        self._unanswered = None
        self._heart.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._done.set()
        if kind is None:
            with suppress(ConnectionLost, ExchangeFailed, ExchangeRefused):
                self._put("disconnect", b"{}")
        self._close()
        self._heart.join()

    def submit(self, items: Iterator[SinkItem]) -> Iterator[Rejection]:
        """Submit everything; yields rejections in order, as they become known."""
        for request in self._requests(items):
            if isinstance(request, Rejection):
                yield from self._finish()
                yield request
                continue
            while len(self._window) >= self._width():
                yield from self._conclude_first()
            self._window.append(request)
            try:
                self._send(request.items)
            except ConnectionLost as lost:
                self._reconnect(lost)
        yield from self._finish()

    def _finish(self) -> Iterator[Rejection]:
        while self._window:
            yield from self._conclude_first()

    def _width(self) -> int:
        """Requests in flight at once, within the server's limit of unanswered events (LIM-03)."""
        return max(1, min(self._depth, self._in_flight_max() // max(1, self._batch())))

    def _batch(self) -> int:
        return min(self._target.batch, self._limits.max_batch_size, self._in_flight_max())

    def _in_flight_max(self) -> int:
        named = self._limits.max_in_flight_drafts
        return IN_FLIGHT_DRAFTS if named is None else named

    def _bytes_max(self) -> int:
        named = self._limits.max_message_bytes
        return MESSAGE_BYTES if named is None else named

    def _requests(self, items: Iterator[SinkItem]) -> Iterator[_Request | Rejection]:
        """Items in messages that the server accepts: bounded in number and bytes, no id twice in one."""
        batch: list[SinkItem] = []
        ids: set[str] = set()
        size = ENVELOPE_BYTES
        for item in items:
            own = len(encoded(item)) + 1
            fault = item.fault
            if not fault and own + ENVELOPE_BYTES > self._bytes_max():
                fault = f"the event has {own} bytes, a message at most {self._bytes_max()}"
            full = len(batch) >= self._batch() or size + own > self._bytes_max()
            if batch and (fault or full or item.id in ids):
                yield _Request(batch)
                batch, ids, size = [], set(), ENVELOPE_BYTES
            if fault:
                yield Rejection(item, "bad_request", [FieldError("", fault)])
                continue
            batch.append(item)
            ids.add(item.id)
            size += own
        if batch:
            yield _Request(batch)

    # -- answers ---------------------------------------------------------------------------------------------

    def _conclude_first(self) -> list[Rejection]:
        """Wait until the oldest request is answered, or until all are and some of them refused."""
        while True:
            first = self._window[0]
            if first.results is not None:
                self._window.popleft()
                return self._concluded(first.items, first.results)
            answered = sum(request.results is not None for request in self._window)
            if self._refused and answered + self._refused >= len(self._window):
                return self._redo()
            self._try(self._take_answer)

    def _take_answer(self) -> None:
        answer = self._receive()
        if isinstance(answer, SubmitResult):
            for request in self._window:
                if request.items[0].id == answer.results[0].id and request.results is None:
                    request.results = answer.results
                    return
            raise ExchangeFailed("unexpected answer from the server")
        self._refused += 1
        self._wait_s = max(self._wait_s, (answer.retry_after_ms or 0) / 1000)

    def _redo(self) -> list[Rejection]:
        """Send again, one at a time: refused requests, and events after them that were rejected."""
        window, self._window = self._window, deque()
        waiting, self._wait_s, self._refused = self._wait_s, 0.0, 0
        self._depth = 1
        time.sleep(waiting)
        rejections: list[Rejection] = []
        for request in window:
            items = request.items
            if request.results is not None:
                again = {result.id for result in request.results if result.status != "committed"}
                self.committed += len(items) - len(again)
                items = [item for item in items if item.id in again]
            if items:
                rejections += self._alone(items)
        return rejections

    def _alone(self, items: list[SinkItem]) -> list[Rejection]:
        """One request and its answer; split in halves while the server refuses it as a whole."""
        while True:
            answer = self._ask(items)
            if isinstance(answer, SubmitResult):
                return self._concluded(items, answer.results)
            if answer.code == "rate_limited":
                time.sleep(max((answer.retry_after_ms or 0) / 1000, RATE_LIMITED_WAIT_MIN_S))
            elif len(items) == 1:
                return [Rejection(items[0], answer.code, [FieldError("", answer.message)])]
            else:
                half = len(items) // 2
                return [*self._alone(items[:half]), *self._alone(items[half:])]

    def _ask(self, items: list[SinkItem]) -> SubmitResult | ErrorMessage:
        def ask() -> SubmitResult | ErrorMessage:
            self._send(items)
            return self._receive()

        return self._try(ask)

    def _concluded(self, items: Sequence[SinkItem], results: Sequence[SubmitResultItem]) -> list[Rejection]:
        by_id = {item.id: item for item in items}
        rejected = [result for result in results if result.status != "committed"]
        self.committed += len(results) - len(rejected)
        return [
            Rejection(by_id[result.id], result.reason or "", field_errors(result.errors))
            for result in rejected
        ]

    # -- the connection --------------------------------------------------------------------------------------

    def _try(self, step: Callable[[], T]) -> T:
        """Run a step; after a lost connection reconnect, send again what is unanswered, and repeat the step."""
        while True:
            try:
                return step()
            except ConnectionLost as lost:
                self._reconnect(lost)

    def _reconnect(self, lost: ConnectionLost) -> None:
        """Connect again, and send again what is unanswered."""
        why = lost
        while True:
            self._back_off(why)
            try:
                self._connect()
                self._resend()
            except ConnectionLost as again:
                why = again
            else:
                return

    def _back_off(self, lost: ConnectionLost) -> None:
        """Wait before the next connection; raises when none had an answer for too long."""
        now = time.monotonic()
        since, tries = self._unanswered or (now, 0)
        if tries > 1 and now - since > self._target.timeout_s:
            raise ExchangeFailed(
                f"{self._target.url} gave no answer for {self._target.timeout_s:.0f} s: {lost}"
            ) from lost
        if tries:
            time.sleep(BACKOFF_S[min(tries, len(BACKOFF_S)) - 1])
        self._unanswered = since, tries + 1

    def _resend(self) -> None:
        self._refused, self._wait_s = 0, 0.0
        for request in self._window:
            if request.results is None:
                self._send(request.items)

    def _connect(self) -> None:
        self._close()
        socket = open_connection(self._target.url, known=self._known)
        self._socket = self._resources.enter_context(socket)
        token = self._source.token()
        self._put("connect", plain_connect_payload(token.text, token.client_id, [self._target.profile]))
        answer = self._next(Connected)
        if isinstance(answer, ErrorMessage):
            raise ExchangeRefused(f"{answer.code}: {answer.message}")
        self._limits, self._known = answer.limits or Limits(), True

    def _close(self) -> None:
        self._socket = None
        self._resources.close()

    def _send(self, items: Sequence[SinkItem]) -> None:
        self._put("submit_events", submit_payload([encoded(item) for item in items]))

    def _put(self, kind: str, payload: bytes) -> None:
        if self._socket is None:
            raise ConnectionLost("not connected")
        try:
            self._socket.send(self._message(kind, payload), text=True)
        except ConnectionClosed as closed:
            self._explain(closed)

    def _message(self, kind: str, payload: bytes) -> bytes:
        return self._writer.encode(kind, payload, now_ms())

    def _receive(self) -> SubmitResult | ErrorMessage:
        """The next result, or an error that concerns one request only."""
        answer = self._next(SubmitResult)
        if isinstance(answer, SubmitResult) and not answer.results:
            raise ExchangeFailed("the server answered a submit with no result")
        self._unanswered = None
        return answer

    def _next(self, kind: type[M]) -> M | ErrorMessage:
        """The next message of this kind, or the next error; others are ignored."""
        if self._socket is None:
            raise ConnectionLost("not connected")
        while True:
            try:
                message = decode(self._socket.recv(timeout=ANSWER_S))
            except ConnectionClosed as closed:
                self._explain(closed)
            except TimeoutError:
                raise ConnectionLost(f"no answer for {ANSWER_S:.0f} s") from None
            except BadMessage as error:
                raise ExchangeFailed(str(error)) from error
            if isinstance(message, ErrorMessage):
                return self._check_error(message)
            if isinstance(message, kind):
                return message

    def _check_error(self, error: ErrorMessage) -> ErrorMessage:
        """Return an error about one request; raise for one about the connection."""
        if error.code in ("rate_limited", "bad_request"):
            return error
        if error.code == "server_error" or (error.code == "auth_failed" and self._renewable()):
            raise ConnectionLost(f"{error.code}: {error.message}")
        raise ExchangeRefused(f"{error.code}: {error.message}")

    def _renewable(self) -> bool:
        """Whether a new token may help: an expired one is replaced, one that was never accepted is not."""
        return self._source.renews and self.committed > 0

    def _explain(self, closed: ConnectionClosed) -> NoReturn:
        frame = closed.rcvd
        if frame is not None and frame.code == CloseCode.REPLACED:
            raise ExchangeFailed(
                f"another connection of client {self._source.client_id!r} replaced this one: give every write a "
                "client of its own"
            ) from closed
        raise ConnectionLost(
            f"closed: {frame.code} {frame.reason}" if frame else "the connection broke"
        ) from closed

    def _beat(self) -> None:
        while not self._done.wait(HEARTBEAT_S):
            socket = self._socket
            if socket is not None:
                try:
                    socket.send(self._message("heartbeat", b"{}"), text=True)
                except (ConnectionClosed, OSError):
                    continue
