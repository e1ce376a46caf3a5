"""A bounded load for `unisono bench`: connections in a closed loop, each waiting for the result of its submit."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeVar

import msgspec
import picows
import uvloop

from unisono.cli.wire import ANSWER_S, HEARTBEAT_S, NO_CLIENT_ID
from unisono.protocol.client_codec import (
    BadMessage,
    Connected,
    ErrorMessage,
    HeartbeatAck,
    MessageWriter,
    ServerMessage,
    SubmitResult,
    decode,
    field_errors,
    item_payload,
    plain_connect_payload,
    submit_payload,
)
from unisono.protocol.identities import client_id_of

ECHOES: Final = 200
ECHO_S: Final = 2.0
"""Round trips of a heartbeat before the load, at most so many and for so long."""

NUMBER: Final = b"{n}"
"""Stands in an event for a number that no other event of the run has."""

M = TypeVar("M")


class LoadFailed(Exception):
    """The server refused something, or went away. `code` is the protocol's, or empty."""

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.code = code


class LoadPlan(msgspec.Struct, frozen=True):
    """What to do. A connection for each token, writing to the partition of the same place."""

    url: str
    tokens: Sequence[str]
    partitions: Sequence[str]
    profile: str
    event: bytes
    batch: int
    seconds: float
    events_max: int


class LoadReport(msgspec.Struct, frozen=True):
    """`events` and `latencies_ms` (sorted) are of the measured time; `written` has all that was committed."""

    events: int
    elapsed_s: float
    latencies_ms: list[float]
    echoes_ms: list[float]
    written: int
    cpu_s: float


class LoadConnection(picows.WSListener):
    """One session with one request at a time. Broadcasts and answers that nobody waits for are passed over."""

    def __init__(self) -> None:
        self._writer = MessageWriter()
        self._transport: picows.WSTransport | None = None
        self._wanted: type[ServerMessage] | None = None
        self._answer: asyncio.Future[ServerMessage] | None = None
        self._parts: list[bytes] = []
        self._failure: LoadFailed | None = None

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        self._transport = transport

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        if frame.msg_type == picows.WSMsgType.CLOSE:
            reason = (frame.get_close_message() or b"").decode(errors="replace")
            self._fail(
                LoadFailed(f"the server closed a connection: {frame.get_close_code()} {reason}".strip())
            )
            transport.disconnect()
            return
        if frame.msg_type not in (picows.WSMsgType.TEXT, picows.WSMsgType.CONTINUATION):
            return
        self._parts.append(frame.get_payload_as_bytes())
        if not frame.fin:
            return
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        try:
            message = decode(data)
        except BadMessage as error:
            self._fail(LoadFailed(str(error)))
            return
        if isinstance(message, ErrorMessage):
            self._fail(LoadFailed(f"{message.code}: {message.message}", message.code))
        elif self._wanted is not None and isinstance(message, self._wanted):
            self._settle(message)

    def on_ws_disconnected(self, transport: picows.WSTransport) -> None:  # noqa: ARG002
        self._fail(LoadFailed("the server closed a connection"))

    def _settle(self, message: ServerMessage) -> None:
        answer, self._answer, self._wanted = self._answer, None, None
        if answer is not None and not answer.done():
            answer.set_result(message)

    def _fail(self, failure: LoadFailed) -> None:
        self._failure = self._failure or failure
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._failure)

    def send(self, kind: str, payload: bytes = b"{}") -> None:
        if self._failure is not None:
            raise self._failure
        assert self._transport is not None
        now_ms = time.time_ns() // 1_000_000
        self._transport.send(picows.WSMsgType.TEXT, self._writer.encode(kind, payload, now_ms))

    async def ask(self, kind: str, payload: bytes, wanted: type[M]) -> M:
        """Send, and wait for the next message of this type."""
        assert self._answer is None, "one request at a time"
        self._answer = asyncio.get_running_loop().create_future()
        self._wanted = wanted  # type: ignore[assignment]
        self.send(kind, payload)
        message = await self._answer
        assert isinstance(message, wanted)
        return message

    def close(self) -> None:
        with suppress(LoadFailed):
            self.send("disconnect")
        if self._transport is not None:
            self._transport.disconnect()


def generate(plan: LoadPlan) -> LoadReport:
    """Run the load; LoadFailed with the first thing that goes wrong."""
    return uvloop.run(_generate(plan))


async def _generate(plan: LoadPlan) -> LoadReport:
    async with _connected(plan) as connections:
        try:
            async with asyncio.timeout(ECHO_S + ANSWER_S):
                echoes = await _echo(connections[0])
            async with asyncio.timeout(plan.seconds + ANSWER_S):
                return await _load(plan, connections, echoes)
        except TimeoutError:
            raise LoadFailed(f"the server has not answered for {ANSWER_S:g} s") from None


@asynccontextmanager
async def _connected(plan: LoadPlan) -> AsyncIterator[list[LoadConnection]]:
    connections: list[LoadConnection] = []
    try:
        for token in plan.tokens:
            connections.append(await _connect(plan, token))
        yield connections
    finally:
        for one in connections:
            one.close()


async def _connect(plan: LoadPlan, token: str) -> LoadConnection:
    client_id = client_id_of(token)
    if client_id is None:
        raise LoadFailed(NO_CLIENT_ID)
    connection = LoadConnection()
    try:
        async with asyncio.timeout(ANSWER_S):
            await picows.ws_connect(lambda: connection, plan.url)
            asked = plain_connect_payload(token, client_id, (plan.profile,))
            await connection.ask("connect", asked, Connected)
    except TimeoutError:
        raise LoadFailed(f"cannot connect to {plan.url}: no answer for {ANSWER_S:g} s") from None
    except (picows.WSError, OSError, ValueError) as error:
        raise LoadFailed(f"cannot connect to {plan.url}: {error}") from None
    except LoadFailed:
        connection.close()
        raise
    return connection


async def _echo(connection: LoadConnection) -> list[float]:
    """Round trips that neither judge nor write anything."""
    taken: list[float] = []
    end = time.perf_counter() + ECHO_S
    while len(taken) < ECHOES and time.perf_counter() < end:
        started = time.perf_counter()
        await connection.ask("heartbeat", b"{}", HeartbeatAck)
        taken.append((time.perf_counter() - started) * 1000)
    return sorted(taken)


async def _load(plan: LoadPlan, connections: Sequence[LoadConnection], echoes: list[float]) -> LoadReport:
    started, cpu = time.perf_counter(), time.process_time()
    run = _Running(plan, started + plan.seconds)
    writers = [
        asyncio.create_task(run.write(connection, partition))
        for connection, partition in zip(connections, plan.partitions, strict=True)
    ]
    tasks = [*writers, asyncio.create_task(_beat(connections))]
    try:
        await asyncio.gather(*writers)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    ended, cpu = time.perf_counter(), time.process_time() - cpu
    elapsed = min(ended - started, plan.seconds)
    return LoadReport(run.events, elapsed, sorted(run.latencies), echoes, run.written, cpu)


class _Running:
    """The writers of one run share the end and the number of events that may still be written."""

    def __init__(self, plan: LoadPlan, end: float) -> None:
        self._plan = plan
        self._end = end
        self._left = plan.events_max
        self._next = 0
        self.events = 0
        self.written = 0
        self.latencies: list[float] = []

    async def write(self, connection: LoadConnection, partition: str) -> None:
        names, plan = [partition], self._plan
        while time.perf_counter() < self._end and self._left > 0:
            size = min(plan.batch, self._left)
            self._left -= size
            items = [item_payload(str(uuid.uuid4()), names, self._event()) for _ in range(size)]
            started = time.perf_counter()
            answer = await connection.ask("submit_events", submit_payload(items), SubmitResult)
            now = time.perf_counter()
            for result in answer.results:
                if result.status != "committed":
                    errors = "; ".join(f"{one.field}: {one.message}" for one in field_errors(result.errors))
                    text = f"rejected: {result.reason}{f' ({errors})' if errors else ''}"
                    raise LoadFailed(text, result.reason or "")
            self.written += size
            if now <= self._end:
                self.events += size
                self.latencies.append((now - started) * 1000)

    def _event(self) -> bytes:
        self._next += 1
        return self._plan.event.replace(NUMBER, b"%d" % self._next)


async def _beat(connections: Sequence[LoadConnection]) -> None:
    while True:
        await asyncio.sleep(HEARTBEAT_S)
        for one in connections:
            one.send("heartbeat")
