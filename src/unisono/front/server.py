"""A front: the process that talks to clients. It owns the sockets and their connections, and asks the
authority what becomes of events and the reader what became of them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import count
from typing import Final

import picows
from picows import WSUpgradeRequest

from unisono.config import Settings
from unisono.front.access import Access
from unisono.front.auth.verify import Verifier
from unisono.front.backpressure import RETRY_MS, Queued
from unisono.front.connection import ClientConnection, leave_all
from unisono.front.frame_reader import LIBRARY_BUFFER_BYTES, PORTION, read_buffer
from unisono.front.hub import Hub
from unisono.front.rates import RateLimiter
from unisono.front.timers import Timers
from unisono.ipc.link import Link
from unisono.ipc.messages import (
    AskHead,
    AskPage,
    AskStats,
    BatchOutcome,
    CancelPage,
    Claim,
    Claimed,
    Drain,
    Dropped,
    EventCommitted,
    HeadAnswer,
    LogFailed,
    Message,
    ModelChanged,
    Offer,
    PageFailed,
    PageResult,
    Ready,
    Release,
    Replaced,
    SingleOutcome,
    Stats,
    Submit,
)
from unisono.ipc.stats import Counters
from unisono.protocol.codec import encode_payload
from unisono.protocol.errors import CloseCode, RateLimited, ServerError
from unisono.protocol.profiles import CANONICAL
from unisono.vocabulary import JsonObject, LogIdentity

log = logging.getLogger("unisono.front")

PATH: Final = b"/sync"

NUMBERS_PER_FRONT: Final = 2**40
"""Connection numbers are unique over all fronts of a node: front n counts from n times this."""


class Front:
    """All connections of one front process.

    Invariants: a connection stands in `_connections` from its upgrade until its socket is gone; the callbacks
    in `_heads`, `_pages` and `_claims` are called at most once, in the order the answers arrive. Nothing here holds a
    connection whose socket is gone (LIM-05).
    """

    def __init__(self, index: int, settings: Settings, verifier: Verifier, access: Access) -> None:
        self._index = index
        self.settings = settings
        self.verifier = verifier
        self.access = access
        self.loop = asyncio.get_running_loop()
        self.timers = Timers(self.loop)
        self.hub = Hub(self.now_ms)
        self.counters = Counters()
        self.limits: JsonObject = {
            "max_batch_size": settings.max_batch_size,
            "sync_limit_min": settings.sync_limit_min,
            "sync_limit_max": settings.sync_limit_max,
            "max_message_bytes": settings.max_message_bytes,
            "max_in_flight_drafts": settings.max_in_flight_drafts,
            "max_subscriptions": settings.max_subscriptions,
        }
        self.ended: asyncio.Future[int] = self.loop.create_future()
        self._rates = RateLimiter(settings.rate_events_per_s, settings.rate_burst_events)
        self._offer: Offer | None = None
        self._numbers = count(index * NUMBERS_PER_FRONT + 1)
        self._tickets = count(1)
        self._connections: dict[int, ClientConnection] = {}
        self._claims: dict[int, Callable[[int], None]] = {}
        self._heads: dict[int, Callable[[int], None]] = {}
        self._pages: dict[int, Callable[[PageResult | None], None]] = {}
        self._queued = Queued(settings.max_queue_events, settings.max_queue_bytes)
        self.read_buffer = read_buffer()
        self._sync_bytes = 0
        self._unflushed: list[ClientConnection] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._doors_open = False
        self._listening: Sequence[socket.socket] = ()
        self._draining = False
        self._authority: Link
        self._reader: Link
        self._node: Link

    async def start(
        self,
        *,
        authority: socket.socket,
        reader: socket.socket,
        node: socket.socket,
        listening: Sequence[socket.socket],
    ) -> None:
        """Join the other processes; clients are let in once the authority has said what it judges by."""
        self._listening = listening
        self._node = await Link.open(node, "node", self._from_node, lambda: self._end(0))
        self._reader = await Link.open(reader, "reader", self._from_reader, lambda: self._lost("reader"))
        self._authority = await Link.open(
            authority, "authority", self._from_authority, lambda: self._lost("authority")
        )

    async def _open_doors(self) -> None:
        for sock in self._listening:
            self._servers.append(
                await picows.ws_create_server(
                    self._upgrade,
                    sock=sock,
                    backlog=1024,
                    websocket_handshake_timeout=self.settings.handshake_timeout_s,
                    max_frame_size=PORTION,
                    read_buffer_init_size=LIBRARY_BUFFER_BYTES,
                    enable_auto_pong=False,
                    logger_name="front",
                )
            )
        self._node.send(Ready())

    def _upgrade(self, request: WSUpgradeRequest) -> ClientConnection | None:
        if request.path.partition(b"?")[0] != PATH:
            return None
        return ClientConnection(self, next(self._numbers))

    # -- what connections ask ------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    @property
    def model(self) -> tuple[int | None, str]:
        """The version and the digest of the model in force."""
        return (None, "") if self._offer is None else (self._offer.model_version, self._offer.model_digest)

    @property
    def log(self) -> LogIdentity | None:
        """Which log connections are told of; it is the same for as long as one of them lives."""
        return None if self._offer is None else self._offer.log

    def offered_profiles(self) -> list[str]:
        assert self._offer is not None
        return [name for name in self.settings.profiles if name in self._offer.profiles]

    def accepted_event_types(self, profile: str) -> tuple[str, ...]:
        assert self._offer is not None
        return self._offer.profiles[profile]

    def admit(self, connection: ClientConnection) -> bool:
        """False when there are too many; the connection stands in the table either way until it is gone."""
        room = len(self._connections) < self.settings.max_connections
        self._connections[connection.number] = connection
        self.counters.add("connections_opened")
        return room

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def serving(self) -> bool:
        """Whether there is a log to answer from."""
        return self._offer is not None

    def forget(self, connection: ClientConnection) -> None:
        self._connections.pop(connection.number, None)
        self._claims.pop(connection.number, None)
        if self._draining and not self._connections:
            self._end(0)

    def claim(self, connection: ClientConnection, then: Callable[[int], None]) -> None:
        assert connection.identity is not None
        self._claims[connection.number] = then
        self._authority.send(Claim(connection.number, connection.identity.client_id))

    def release(self, connection: ClientConnection) -> None:
        self._authority.send(Release(connection.number))

    def check_pressure(self, items: int, size: int) -> None:
        """Refuse what would overfill the queue to the authority (LIM-05)."""
        self._queued.check(items, size)

    def check_rate(self, client_id: str, items: int) -> None:
        wait_s = self._rates.take(client_id, items, self.loop.time())
        if wait_s > 0:
            raise RateLimited("too many events per second", int(wait_s * 1000) + 1)

    def submit(self, submission: Submit, size: int) -> None:
        self._queued.add(submission.conn, len(submission.items), size)
        self._authority.send(submission)

    def admit_sync(self, size: int) -> None:
        """Refuse what would overfill the memory of syncs under way (LIM-05)."""
        if self._sync_bytes + size > self.settings.max_sync_queue_bytes:
            raise RateLimited("too many syncs at once", RETRY_MS)
        self._sync_bytes += size

    def settle_sync(self, size: int) -> None:
        self._sync_bytes -= size

    def ask_head(self, then: Callable[[int], None]) -> int:
        ticket = next(self._tickets)
        self._heads[ticket] = then
        self._authority.send(AskHead(ticket))
        return ticket

    def ask_page(self, ask: Callable[[int], AskPage], then: Callable[[PageResult | None], None]) -> int:
        ticket = next(self._tickets)
        self._pages[ticket] = then
        self._reader.send(ask(ticket))
        return ticket

    def cancel_sync(self, ticket: int, size: int) -> None:
        """Nobody waits for this head or page any more. A page counts until the reader has answered (LIM-05)."""
        if ticket in self._pages:
            self._pages[ticket] = lambda _: self.settle_sync(size)
            self._reader.send(CancelPage(ticket))
        else:
            self._heads.pop(ticket, None)
            self.settle_sync(size)

    def flush_later(self, connection: ClientConnection) -> None:
        """All that this pass of the event loop says to a connection goes out in one write.

        A group's worth of events, or the answers to a client's pipelined requests, cost one system call.
        """
        if not self._unflushed:
            self.loop.call_soon(self._flush)
        self._unflushed.append(connection)

    def _flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, []
        for connection in unflushed:
            connection.guard(connection.flush)

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- what the other processes say ----------------------------------------------------------------------

    def _from_authority(self, message: Message) -> None:
        match message:
            case EventCommitted():
                self.counters.add("broadcasts", self.hub.publish(message))
            case BatchOutcome() | SingleOutcome():
                self._queued.answered(message.conn)
                connection = self._connections.get(message.conn)
                if connection is not None:
                    connection.guard(partial(connection.answer, message))
            case Dropped():
                self._queued.answered(message.conn)
            case HeadAnswer():
                asked = self._heads.pop(message.ticket, None)
                if asked is not None:
                    asked(message.committed_id)
            case Claimed():
                then = self._claims.pop(message.conn, None)
                if then is not None:
                    then(message.head)
            case Replaced():
                replaced = self._connections.get(message.conn)
                if replaced is not None:
                    replaced.leave(CloseCode.REPLACED, "a newer connection has this client_id")
            case Offer():
                self._offer = message
                if not self._doors_open:
                    self._doors_open = True
                    self.spawn(self._open_doors())
            case ModelChanged():
                self._model_changed(message)
            case LogFailed():
                if message.recovering:
                    self._await_log()
                else:
                    log.critical(
                        "front %d: authority failed, closing %d connections: %s",
                        *(self._index, len(self._connections), message.message),
                        extra={**self._fields(), "error": message.message},
                    )
                    self._broken()
            case _:
                self._unexpected(message, "authority")

    def _model_changed(self, changed: ModelChanged) -> None:
        """MODEL-02: every active canonical connection hears of it."""
        self._offer = changed.offer
        payload = encode_payload(
            {
                "old_model_version": changed.old_model_version,
                "new_model_version": changed.offer.model_version,
            }
        )
        for connection in list(self._connections.values()):
            if connection.session.profile == CANONICAL:
                connection.tell("version_changed", payload)

    def _from_reader(self, message: Message) -> None:
        match message:
            case PageResult() | PageFailed():
                self._pages.pop(message.ticket)(message if isinstance(message, PageResult) else None)
            case _:
                self._unexpected(message, "reader")

    def _from_node(self, message: Message) -> None:
        match message:
            case AskStats():
                self.counters.set("connections", len(self._connections))
                self.counters.set("in_flight_items", self._queued.items)
                self.counters.set("in_flight_bytes", self._queued.bytes)
                self.counters.set("sync_queue_bytes", self._sync_bytes)
                self.counters.set("subscribed_partitions", self.hub.partitions)
                self._node.send(Stats(message.ticket, self.counters.dump()))
            case Drain():
                self._drain()
            case _:
                self._unexpected(message, "node")

    # -- ending --------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Stop accepting, let everybody finish, close with 1001; past the time limit, cut."""
        self._draining = True
        for server in self._servers:
            server.close()
        for connection in list(self._connections.values()):
            connection.drain()
        if not self._connections:
            self._end(0)
        self.loop.call_later(self.settings.drain_timeout_s, self._end, 0)

    def _await_log(self) -> None:
        """The shared log is unavailable or was replaced: close every connection, and refuse new ones until the next
        Offer.

        Requests without an answer are dropped; the authority has dropped them too.
        """
        log.warning(
            "front %d: log unavailable, closing %d connections",
            *(self._index, len(self._connections)),
            extra=self._fields(),
        )
        self._offer = None
        self._queued.void()
        self._heads.clear()
        self._claims.clear()
        leave_all(self._connections.values(), ServerError())

    def _lost(self, peer: str) -> None:
        if not self._draining:
            log.critical(
                "front %d lost the %s: closing %d connections",
                *(self._index, peer, len(self._connections)),
                extra={**self._fields(), "peer": peer},
            )
        self._broken()

    def _unexpected(self, message: Message, peer: str) -> None:
        name = type(message).__name__
        log.error(
            "front %d: unexpected message %s from the %s",
            *(self._index, name, peer),
            extra={**self._fields(), "message_type": name, "peer": peer},
        )

    def _fields(self) -> dict[str, object]:
        """Fields of every log line of this front."""
        return {"front": self._index, "connections": len(self._connections)}

    def _broken(self) -> None:
        """Authority or reader is gone: nothing more can be promised to anybody (DUR-04)."""
        if self.ended.done():
            return
        self._draining = True
        for server in self._servers:
            server.close()
        leave_all(self._connections.values(), ServerError())
        if not self._connections:
            self._end(1)
        self.loop.call_later(self.settings.close_grace_s, self._end, 1)

    def _end(self, code: int) -> None:
        if not self.ended.done():
            self.ended.set_result(code)

    async def close(self) -> None:
        self.timers.close()
        await self.verifier.keys.close()
        for link in (self._authority, self._reader, self._node):
            link.close()
