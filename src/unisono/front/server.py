"""A front: the process that talks to clients. It owns their connections, sends their events to the authority and
reads history through the reader.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine, Sequence
from itertools import count, islice
from typing import Final

import msgspec

from unisono.config import Settings
from unisono.front.access import Access
from unisono.front.auth.verify import Verifier
from unisono.front.client_sockets import ClientSocket, Poll
from unisono.front.connecting import NEW_CLAIMS
from unisono.front.connection import ClientConnection
from unisono.front.connection_report import describe
from unisono.front.descriptors import MAX_REFUSED, connections_within_limit
from unisono.front.heap_trim import HeapTrim
from unisono.front.http_upgrade import RefusedUpgrade, refusing_answer
from unisono.front.live_access import AppliedChanges, apply_access_change
from unisono.front.openings import Listener, Openings
from unisono.front.services import FrontServices
from unisono.front.upgrades import UpgradeCheck
from unisono.ipc.link import Link
from unisono.ipc.messages import (
    AccessChanged,
    AskAccess,
    AskConnections,
    AskEventTimes,
    AskStats,
    AskSubscribers,
    BatchOutcome,
    Claimed,
    CommandResult,
    Drain,
    Dropped,
    EventCommitted,
    HeadAnswer,
    LogFailed,
    Message,
    ModelChanged,
    Offer,
    PresenceChanges,
    Ready,
    Replaced,
    SingleOutcome,
    Stats,
)
from unisono.ipc.page_messages import PageFailed, PageResult
from unisono.protocol.codec import encode_payload
from unisono.protocol.errors import CloseCode, ServerError
from unisono.protocol.profiles import CANONICAL

log = logging.getLogger("unisono.front")

NUMBERS_PER_FRONT: Final = 2**40
"""Connection numbers are unique over all fronts of a node: front n counts from n times this."""


class Front:
    """All connections of one front process.

    Invariants: a socket is among `_openings` from its accept until its upgrade, and its connection is in
    `_connections` from there until the socket is gone. Both together are bounded by `max_connections` and the limit
    of open files, beside those who are being told that there is no room. Nothing here refers to a connection whose
    socket is gone (LIM-05).
    """

    def __init__(self, index: int, settings: Settings, verifier: Verifier, access: Access) -> None:
        self._index = index
        self._settings = settings
        self._services = FrontServices.create(settings, verifier, access)
        self._loop = self._services.loop
        self._requests = self._services.requests
        self._claims = self._requests.claims
        self._counters = self._services.counters
        self._hub = self._services.hub
        self.offer: Offer | None = None
        self.draining = False
        self.exit_code: asyncio.Future[int] = self._loop.create_future()
        self._numbers = count(index * NUMBERS_PER_FRONT + 1)
        self._max_connections = connections_within_limit(settings.max_connections, index)
        self._connections: dict[int, ClientConnection] = {}
        handshake_s = settings.handshake_timeout_s
        self._openings = Openings(self._loop, handshake_s, self._counters, self._room, self._socket_left)
        self._upgrade_check = UpgradeCheck(settings, self._counters)
        self._heap = HeapTrim(self._loop)
        self._applied_access = AppliedChanges(
            lambda ticket: self._node.send(CommandResult(ticket, True, b"null"))
        )
        self._unflushed: list[ClientConnection] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._poll: Poll
        self._sockets: Sequence[socket.socket] = ()
        self._listeners: list[Listener] = []
        self._accepting = False
        self._broadcasts = 0
        self._node: Link

    async def start(
        self,
        *,
        authority: socket.socket,
        reader: socket.socket,
        node: socket.socket,
        listening: Sequence[socket.socket],
    ) -> None:
        """Connect to the other processes. Clients are accepted after the authority's first Offer."""
        self._sockets = listening
        self._poll = Poll(self._loop)
        self._node = await Link.open(node, "node", self._from_node, lambda: self._exit(0))
        to_reader = await Link.open(reader, "reader", self._from_reader, lambda: self._lost("reader"))
        to_authority = await Link.open(
            authority, "authority", self._from_authority, lambda: self._lost("authority")
        )
        self._requests.connect(to_authority, to_reader)

    def _accept_clients(self) -> None:
        for sock in self._sockets:
            self._listeners.append(Listener(sock, self._poll, self._upgrade, self._openings))
        self._node.send(Ready())

    def _upgrade(self, opened: ClientSocket, head: bytes, more: bool) -> None:
        try:
            answer = self._upgrade_check.answer(head, full=self._room() <= -MAX_REFUSED)
        except RefusedUpgrade as refused:
            self._openings.refuse(opened, refusing_answer(refused))
            return
        opened.write(answer)
        connection = self._new_connection()
        self._openings.upgraded(opened)
        connection.open(opened)
        if more:
            connection.on_early_frames()

    def _new_connection(self) -> ClientConnection:
        return ClientConnection(self._services, self, next(self._numbers))

    def _room(self) -> int:
        """Connections that there is still room for; negative while some above the limit are being closed."""
        return self._max_connections - len(self._connections)

    def _socket_left(self) -> None:
        self._heap.left(len(self._connections) + len(self._openings))

    # -- for the connections (ConnectionOwner) -------------------------------------------------------------

    def admit(self, connection: ClientConnection) -> bool:
        """False when there are too many; the connection is registered either way until its socket is gone."""
        room = self._room() > 0
        self._connections[connection.number] = connection
        self._counters.add("connections_opened")
        return room

    def forget(self, connection: ClientConnection) -> None:
        self._connections.pop(connection.number, None)
        self._claims.forget(connection.number)
        self._socket_left()
        if self.draining and not self._connections:
            self._exit(0)

    def replace(self, number: int) -> None:
        replaced = self._connections.get(number)
        if replaced is not None:
            reason = "a newer connection has this client_id"
            replaced.guard(lambda: replaced.leave(CloseCode.REPLACED, reason))

    def flush_later(self, connection: ClientConnection) -> None:
        """Everything that one pass of the event loop sends to a connection goes out in one write.

        The events of a group, or the answers to pipelined requests, cost one system call.
        """
        if not self._unflushed:
            self._loop.call_soon(self._flush)
        self._unflushed.append(connection)

    def _flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, []
        for connection in unflushed:
            try:
                connection.flush()
            except Exception:
                connection.fail_unexpected()

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- messages of the other processes -------------------------------------------------------------------

    def _from_authority(self, message: Message) -> None:
        match message:
            case EventCommitted():
                self._claims.head = message.committed_id
                if message.answers:
                    self._answer(message.origin, "event_committed", message.payload)
                if self._requests.traces is None and self._requests.watch is None:
                    self._broadcasts += self._hub.publish(message)
                else:
                    self._broadcasts += self._requests.publish_observed(message, self._hub.publish)
            case BatchOutcome():
                self._answer(message.conn, "submit_events_result", message.payload)
            case SingleOutcome():
                kind = "event_committed" if message.committed else "event_rejected"
                self._answer(message.conn, kind, message.payload)
            case AccessChanged():
                self._access_changed(message)
            case PresenceChanges():
                self._services.presence.take(message.changes)
            case Dropped():
                self._requests.answered(message.conn)
            case HeadAnswer():
                self._requests.head_answered(message)
            case Claimed():
                self._claims.claimed(message)
            case Replaced():
                self.replace(message.conn)
            case Offer():
                self.offer = message
                self._claims.offered(message)
                if not self._accepting:
                    self._accepting = True
                    self._accept_clients()
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
                    self._end_failed()
            case _:
                self._unexpected(message, "authority")

    def _answer(self, conn: int, kind: str, payload: bytes) -> None:
        """Answer the oldest request of a connection of this front; those of other fronts are not known here."""
        items = self._requests.answered(conn)
        connection = self._connections.get(conn)
        if connection is not None:
            try:
                connection.answer(kind, payload, items)
            except Exception:
                connection.fail_unexpected()

    def _model_changed(self, changed: ModelChanged) -> None:
        """MODEL-02: every active canonical connection is notified."""
        claims = () if self.offer is None else self.offer.claims
        self.offer = changed.offer
        payload = encode_payload(
            {
                "old_model_version": changed.old_model_version,
                "new_model_version": changed.offer.model_version,
            }
        )
        for connection in list(self._connections.values()):
            if connection.session.profile == CANONICAL:
                connection.send_message("version_changed", payload)
            if connection.identity is not None and set(changed.offer.claims) - set(claims):
                connection.leave(CloseCode.GOING_AWAY, NEW_CLAIMS)

    def _access_changed(self, changed: AccessChanged) -> None:
        """Every connection keeps what it may still do (AUTHZ-09). An ACL that cannot be read changes nothing."""
        apply_access_change(self._services, list(self._connections.values()), changed, self._fields())
        self._applied_access.applied(changed.number)

    def _from_reader(self, message: Message) -> None:
        match message:
            case PageResult() | PageFailed():
                self._requests.page_answered(message)
            case _:
                self._unexpected(message, "reader")

    def _from_node(self, message: Message) -> None:
        match message:
            case AskStats():
                self._counters.reset("broadcasts", self._broadcasts)
                self._counters.set("connections", len(self._connections))
                self._counters.set("openings", len(self._openings))
                self._node.send(Stats(message.ticket, self._services.count_all()))
            case AskConnections():
                found = [describe(each) for each in islice(self._connections.values(), message.limit)]
                self._node.send(CommandResult(message.ticket, True, encode_payload(found)))
            case AskSubscribers():
                counts = [self._hub.count(name) for name in message.partitions]
                self._node.send(CommandResult(message.ticket, True, encode_payload(counts)))
            case AskAccess():
                self._applied_access.ask(message)
            case AskEventTimes():
                times = self._requests.event_times(message.after, self._loop)
                self._node.send(CommandResult(message.ticket, True, msgspec.json.encode(times)))
            case Drain():
                self._drain()
            case _:
                self._unexpected(message, "node")

    # -- ending --------------------------------------------------------------------------------------------

    def _stop_accepting(self) -> None:
        self.draining = True
        for listener in self._listeners:
            listener.close()

    def _drain(self) -> None:
        """Stop accepting, finish what is in flight, close with 1001; past the time limit, cut."""
        self._stop_accepting()
        for connection in list(self._connections.values()):
            connection.drain()
        if not self._connections:
            self._exit(0)
        self._loop.call_later(self._settings.drain_timeout_s, self._exit, 0)

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
        self.offer = None
        self._requests.drop_authority_requests()
        self._fail_all()

    def _fail_all(self) -> None:
        """Close every connection with `server_error` (DUR-04)."""
        for connection in list(self._connections.values()):
            connection.fail(ServerError())

    def _lost(self, peer: str) -> None:
        if not self.draining:
            log.critical(
                "front %d lost the %s: closing %d connections",
                *(self._index, peer, len(self._connections)),
                extra={**self._fields(), "peer": peer},
            )
        self._end_failed()

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

    def _end_failed(self) -> None:
        """Authority or reader is gone: no request can be answered any more (DUR-04)."""
        if self.exit_code.done():
            return
        self._stop_accepting()
        self._fail_all()
        if not self._connections:
            self._exit(1)
        self._loop.call_later(self._settings.close_grace_s, self._exit, 1)

    def _exit(self, code: int) -> None:
        if not self.exit_code.done():
            self.exit_code.set_result(code)

    async def close(self) -> None:
        self._services.timers.close()
        self._openings.close()
        self._poll.close()
        await self._services.verifier.keys.close()
        if self._requests.traces is not None:
            await asyncio.to_thread(self._requests.traces.close)
        for link in (self._requests.authority, self._requests.reader, self._node):
            link.close()
