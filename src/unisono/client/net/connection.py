"""The socket: dial, wait, dial again; heartbeats; a token when one is needed (CLIENT-08, -09).

The core decides what is sent and when. A connection feeds it what came in, and performs its effects: send,
drop the socket, retry, stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable

import aiohttp
from aiohttp import ClientWSTimeout, WSMsgType

from unisono.client.config import Config
from unisono.client.core import Core
from unisono.client.history import ServerHistory
from unisono.client.net.renewal import Socket, Successor, TokenRenewal
from unisono.client.net.tokens import TokenFailed, TokenSource
from unisono.client.options import Options
from unisono.client.presence import PresenceBoard
from unisono.client.reasons import unreachable, without_tokens
from unisono.client.sync.inputs_effects import Dialing, Lost, Opened, Received, TimerFired
from unisono.protocol.client_codec import (
    BadMessage,
    Connected,
    HistoryResult,
    MessageWriter,
    PresenceUpdate,
    connect_payload,
    decode,
)
from unisono.protocol.codec import encode_payload
from unisono.protocol.extensions import EXTENSIONS

CLOSE_TIMEOUT_S = 1.0
"""How long a peer may take to answer a close: nothing depends on its answer."""

BATCH_MESSAGES_MAX = 256
BATCH_BYTES_MAX = 4 * 1024 * 1024
"""Messages handled in one transaction: past this a larger batch saves nothing, and the memory is better bounded."""


def backoff_s(tries: int, options: Options, chance: float) -> float:
    """How long to wait after so many tries that did not last; `chance` is from 0 to 1 (full jitter)."""
    doubled = options.backoff_base_s * 2.0 ** min(max(0, tries - 1), 32)
    return chance * min(options.backoff_cap_s, doubled)


class ServerConnection:
    """One client's connection to its server, over one socket after the other.

    Invariants: at most one socket is open; each try feeds the core `Dialing`, perhaps `Opened`, then `Lost`, in that
    order.
    """

    def __init__(self, config: Config, tokens: TokenSource) -> None:
        self.core: Core
        self._config = config
        self._options = config.options
        self._tokens = tokens
        self._loop = asyncio.get_running_loop()
        self._socket: Socket | None = None
        self._writer = MessageWriter()
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._token = ""
        self._connect_arguments = 0, False
        self._adopting = False
        self._renewal = TokenRenewal(
            tokens, self._options, self._open_socket, self._connect_payload, self._handle, self._report
        )
        self._tries = 0
        self._heard_at = 0.0
        self._received: list[Received] = []
        self._received_bytes = 0
        self._may_dial = asyncio.Event()
        self._may_dial.set()
        self._hurry = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._dialling: asyncio.Timeout | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[object] | None = None
        self._task: asyncio.Task[None] | None = None
        self.failure: Exception | None = None
        self.presence = PresenceBoard(config.client_id, self.send, self._call_later)
        self.history = ServerHistory(self.send)

    def _call_later(self, delay_s: float, call: Callable[[], None]) -> object:
        return self._loop.call_later(delay_s, self._guarded, call)

    # -- effects of the core (its CoreConnection) ------------------------------------------------------------

    def connect(self, last_committed_id: int, *, snapshots: bool) -> None:
        self._connect_arguments = last_committed_id, snapshots
        if not self._adopting:  # a successor has connected already
            self.send("connect", self._connect_payload(self._token))

    def _connect_payload(self, token: str) -> bytes:
        last_committed_id, snapshots = self._connect_arguments
        return connect_payload(
            token=token,
            client_id=self._config.client_id,
            profile=self._config.profile,
            last_committed_id=last_committed_id,
            snapshots=snapshots,
            extensions=EXTENSIONS,
        )

    def send(self, kind: str, payload: bytes) -> None:
        self._outgoing.put_nowait(self._writer.encode(kind, payload, time.time_ns() // 1_000_000))

    def drop_connection(self) -> None:
        socket = self._socket
        if socket is not None and not socket.closed and self._closing is None:
            self._closing = self._loop.create_task(socket.close())

    def retry(self, new_token: bool) -> None:
        if not new_token:
            return
        if self._tokens.fixed:
            self.stop(
                f"auth_failed: the server refuses the token{self._refusal()}; "
                "a function as token= would be asked for another one"
            )
        elif self._tokens.refused():
            self._hurry.set()  # a newer token can be requested at once: no reason to wait

    def _refusal(self) -> str:
        problem = self.core.publisher.problem
        return f" ({problem.message})" if problem is not None and problem.code == "auth_failed" else ""

    def stop(self, reason: str) -> None:
        self._may_dial.clear()
        self.core.publisher.stopped = reason

    def wake_at(self, at: float) -> None:
        """Set the one timer to the earliest time asked for; when it fires the core asks for the next one."""
        if self._timer is not None and self._timer.when() > self._loop.time():
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._guarded(lambda: self.core.feed(TimerFired()))

    def _guarded(self, call: Callable[[], None]) -> None:
        """A call nobody waits for: when it fails, the connection ends."""
        try:
            call()
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End the connection for good, because of this error."""
        self.failure = self.failure or error
        if self._task is not None:
            self._task.cancel()

    # -- calls of the program --------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Go offline and stay there, also in the middle of dialling; returns when the core is offline."""
        self._may_dial.clear()
        await self.leave("client_paused")
        self.drop_connection()
        dialling, self._dialling = self._dialling, None
        if dialling is not None:
            dialling.reschedule(self._loop.time())
        await self._idle.wait()

    def resume(self) -> None:
        """Go online now, also after a stop."""
        self.core.publisher.stopped = None
        self._tries = 0
        self._may_dial.set()
        if self._socket is None:
            self._hurry.set()
        self.core.publisher.publish()

    # -- the task --------------------------------------------------------------------------------------------

    def start(self) -> asyncio.Task[None]:
        """Start the task; it ends when it is cancelled, or fails."""
        self._task = self._loop.create_task(self._run())
        return self._task

    async def _run(self) -> None:
        """Connect again and again, until cancelled."""
        timeout = aiohttp.ClientTimeout(total=None)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session:
                while True:
                    await self._may_dial.wait()
                    self._hurry.clear()
                    self._idle.clear()
                    self.core.feed(Dialing())
                    lasted_s, code = await self._once(session, None)
                    while (successor := await self._renewal.take(self._may_dial.is_set)) is not None:
                        lasted_s, code = await self._once(session, successor)
                    self._tries = 0 if lasted_s >= self._options.stable_after_s else self._tries + 1
                    self.core.feed(Lost(code))
                    self._idle.set()
                    if self._may_dial.is_set():
                        await self._wait()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._renewal.cancel()

    async def _wait(self) -> None:
        """Wait for an exponential backoff with full jitter, or until `_hurry` is set."""
        delay_s = backoff_s(self._tries, self._options, random.random())  # noqa: S311
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), delay_s)

    async def _once(
        self, session: aiohttp.ClientSession, successor: Successor | None
    ) -> tuple[float, int | None]:
        """Run one socket from its opening to its end; gives how long it was open, and its close code."""
        socket = await self._dial(session) if successor is None else successor.socket
        if socket is None:
            return 0.0, None
        opened_at = self._loop.time()
        async with self._socket_tasks(socket):
            if successor is None:
                self.core.feed(Opened())
            else:
                self._adopt(successor)
            self._renewal.start(session, socket, self._token)
            code = await self._listen(socket)
        return self._loop.time() - opened_at, code

    # -- a new token -----------------------------------------------------------------------------------------

    def _adopt(self, successor: Successor) -> None:
        """Go on with a connection that the server has accepted; nobody sees the client offline."""
        self._token = successor.token
        self._tokens.adopt(successor.token)
        self._adopting = True
        try:
            self.core.feed(Lost(None), Dialing(), Opened(), Received(successor.connected))
        finally:
            self._adopting = False
        self._connected(successor.connected)

    async def _open_socket(self, session: aiohttp.ClientSession) -> Socket:
        return await session.ws_connect(
            self._config.url,
            timeout=ClientWSTimeout(ws_close=CLOSE_TIMEOUT_S),
            max_msg_size=self._options.message_bytes_max,
            decode_text=False,
        )

    async def _dial(self, session: aiohttp.ClientSession) -> Socket | None:
        """Get a token and a socket; None, with the reason reported, unless the program paused meanwhile."""
        dialling = self._dialling = asyncio.timeout(None)
        try:
            async with dialling:
                self._token = await self._request_token()
                self.core.presume_author(self._token)
                async with asyncio.timeout(self._options.connect_timeout_s):
                    socket = await self._open_socket(session)
        except TokenFailed as error:
            self.core.report("token_failed", str(error))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if dialling.when() is None:
                says = unreachable(self._config.url, error, self._options.connect_timeout_s)
                self.core.report("unreachable", without_tokens(says, self._token))
        else:
            if dialling.when() is None:
                return socket
            await socket.close()  # paused while the socket opened
        finally:
            self._dialling = None
        return None

    async def _request_token(self) -> str:
        """The token, however long the program takes to give it; a long wait is reported."""
        patience_s = self._options.connect_timeout_s
        says = f"the token function has not answered for {patience_s:g} s"
        timer = self._loop.call_later(patience_s, self._guarded, lambda: self._report("token_failed", says))
        try:
            return await self._tokens.get()
        finally:
            timer.cancel()

    def _report(self, code: str, message: str) -> None:
        self.core.report(code, message)
        self.core.publisher.publish()

    @contextlib.asynccontextmanager
    async def _socket_tasks(self, socket: Socket) -> AsyncIterator[None]:
        """Run the writer and the heartbeat of a socket, and end both with it."""
        self._socket = socket
        self._writer = MessageWriter()
        self._outgoing = asyncio.Queue()
        self._received, self._received_bytes = [], 0
        self._heard_at = self._loop.time()
        tasks = [self._loop.create_task(self._write(socket)), self._loop.create_task(self._beat())]
        try:
            yield
        finally:
            self._socket = None
            self.presence.lost()
            self.history.lost()
            closing, self._closing = self._closing, None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, *([closing] if closing else []), return_exceptions=True)
            await socket.close()

    async def _listen(self, socket: Socket) -> int | None:
        """Until the socket ends; gives its close code.

        Messages that have arrived are handled together. `receive` does not yield to the loop while more are there, so
        they are handled when there are no more, or when a batch is full.
        """
        while True:
            frame = await socket.receive()
            self._heard_at = self._loop.time()
            if frame.type is not WSMsgType.TEXT or not self._read(frame.data):
                self._handle()
                return socket.close_code
            if len(self._received) >= BATCH_MESSAGES_MAX or self._received_bytes >= BATCH_BYTES_MAX:
                self._handle()
                await asyncio.sleep(0)

    def _read(self, data: bytes) -> bool:
        """Decode a message and queue it; False for bytes that are no message, which ends the connection."""
        try:
            message = decode(data)
        except BadMessage as error:
            self.core.report("protocol_violation", str(error))
            return False
        if isinstance(message, PresenceUpdate):
            self.presence.take(message)
        elif isinstance(message, HistoryResult):
            self.history.take(message)
        elif message is not None:
            if isinstance(message, Connected):
                self._loop.call_soon(self._guarded, lambda: self._connected(message))
            if not self._received:
                self._loop.call_soon(self._guarded, self._handle)
            self._received.append(Received(message))
            self._received_bytes += len(data)
        return True

    def _connected(self, connected: Connected) -> None:
        self.presence.opened(connected)
        self.history.opened(connected)

    def _handle(self) -> None:
        received, self._received, self._received_bytes = self._received, [], 0
        if received:
            self.core.feed(*received)

    async def _write(self, socket: Socket) -> None:
        with contextlib.suppress(ConnectionError, aiohttp.ClientError):
            while True:
                await socket.send_frame(await self._outgoing.get(), WSMsgType.TEXT)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(min(self._options.heartbeat_interval_s, self.presence.say_again_s))
            self.presence.say_again()
            silent_s = self._loop.time() - self._heard_at
            if silent_s > self._options.dead_after_s:
                self.core.report("dead_server", f"nothing came from the server for {silent_s:.1f} s")
                self.drop_connection()
                return
            self.send("heartbeat", b"{}")

    async def leave(self, reason: str) -> None:
        """Send `disconnect`, so that the server drops the subscriptions at once (CONN-06)."""
        socket = self._socket
        if socket is not None and not socket.closed:
            payload = encode_payload({"reason": reason})
            message = self._writer.encode("disconnect", payload, time.time_ns() // 1_000_000)
            with contextlib.suppress(ConnectionError, aiohttp.ClientError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await socket.send_frame(message, WSMsgType.TEXT)
