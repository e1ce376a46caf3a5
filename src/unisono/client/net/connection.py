"""The socket and its life: dial, wait, dial again; heartbeats; a token when one is needed (CLIENT-08, -09).

What is said and when is the core's business. A connection only tells it what came in, and carries out what it is
told: say this, hang up, try again, stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Literal, TypeAlias

import aiohttp
from aiohttp import ClientWebSocketResponse, ClientWSTimeout, WSMsgType

from unisono.client.config import Config
from unisono.client.core import Core
from unisono.client.net.tokens import TokenFailed, TokenSource
from unisono.client.options import Options
from unisono.client.reasons import unreachable, without_tokens
from unisono.client.sync.inputs_effects import Dialing, Lost, Opened, Received, TimerFired
from unisono.protocol.client_codec import BadMessage, MessageWriter, connect_payload, decode
from unisono.protocol.codec import encode_payload

Socket: TypeAlias = "ClientWebSocketResponse[Literal[False]]"
"""One that gives text as bytes."""

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
    """One client's line to its server, over as many sockets as it takes.

    Invariants: at most one socket is open; the core is told `Dialing`, then perhaps `Opened`, then `Lost`, in that
    order, for each try.
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
        self._alarm: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[object] | None = None
        self._life: asyncio.Task[None] | None = None
        self.failure: Exception | None = None

    # -- what the core asks (its Line) -----------------------------------------------------------------------

    def connect(self, last_committed_id: int, *, snapshots: bool) -> None:
        payload = connect_payload(
            token=self._token,
            client_id=self._config.client_id,
            profile=self._config.profile,
            last_committed_id=last_committed_id,
            snapshots=snapshots,
        )
        self.say("connect", payload)

    def say(self, kind: str, payload: bytes) -> None:
        self._outgoing.put_nowait(self._writer.encode(kind, payload, time.time_ns() // 1_000_000))

    def hang_up(self) -> None:
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
            self._hurry.set()  # a newer token is to be had at once: no reason to wait

    def _refusal(self) -> str:
        problem = self.core.publisher.problem
        return f" ({problem.message})" if problem is not None and problem.code == "auth_failed" else ""

    def stop(self, reason: str) -> None:
        self._may_dial.clear()
        self.core.publisher.stopped = reason

    def wake_at(self, at: float) -> None:
        """One alarm at a time, the earliest; when it rings the core says what is still to come."""
        if self._alarm is not None and self._alarm.when() > self._loop.time():
            if self._alarm.when() <= at:
                return
            self._alarm.cancel()
        self._alarm = self._loop.call_at(at, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._guarded(lambda: self.core.feed(TimerFired()))

    def _guarded(self, call: Callable[[], None]) -> None:
        """A call nobody waits for: when it fails, end the life it belongs to."""
        try:
            call()
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End for good, because of this."""
        self.failure = self.failure or error
        if self._life is not None:
            self._life.cancel()

    # -- what the program asks -------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Go offline and stay there, also in the middle of dialling; done when the core knows that it is."""
        self._may_dial.clear()
        await self.leave("client_paused")
        self.hang_up()
        dialling, self._dialling = self._dialling, None
        if dialling is not None:
            dialling.reschedule(self._loop.time())
        await self._idle.wait()

    def resume(self) -> None:
        """Go online now, also after having been stopped."""
        self.core.publisher.stopped = None
        self._tries = 0
        self._may_dial.set()
        if self._socket is None:
            self._hurry.set()
        self.core.publisher.publish()

    # -- the life --------------------------------------------------------------------------------------------

    def start(self) -> asyncio.Task[None]:
        """Begin; the task ends when it is cancelled, or fails."""
        self._life = self._loop.create_task(self._run())
        return self._life

    async def _run(self) -> None:
        """Until cancelled."""
        timeout = aiohttp.ClientTimeout(total=None)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session:
                while True:
                    await self._may_dial.wait()
                    self._hurry.clear()
                    self._idle.clear()
                    self.core.feed(Dialing())
                    lasted_s, code = await self._once(session)
                    self._tries = 0 if lasted_s >= self._options.stable_after_s else self._tries + 1
                    self.core.feed(Lost(code))
                    self._idle.set()
                    if self._may_dial.is_set():
                        await self._wait()
        finally:
            if self._alarm is not None:
                self._alarm.cancel()

    async def _wait(self) -> None:
        """Exponential backoff with full jitter, cut short when there is reason to hurry."""
        delay_s = backoff_s(self._tries, self._options, random.random())  # noqa: S311
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), delay_s)

    async def _once(self, session: aiohttp.ClientSession) -> tuple[float, int | None]:
        """One socket from its opening to its end; how long it was open, and its close code."""
        socket = await self._dial(session)
        if socket is None:
            return 0.0, None
        opened_at = self._loop.time()
        async with self._companions(socket):
            self.core.feed(Opened())
            code = await self._listen(socket)
        return self._loop.time() - opened_at, code

    async def _dial(self, session: aiohttp.ClientSession) -> Socket | None:
        """Get a token and a socket; None, and the program was told why, unless it paused meanwhile."""
        dialling = self._dialling = asyncio.timeout(None)
        try:
            async with dialling:
                self._token = await self._asked_token()
                async with asyncio.timeout(self._options.connect_timeout_s):
                    socket = await session.ws_connect(
                        self._config.url,
                        timeout=ClientWSTimeout(ws_close=CLOSE_TIMEOUT_S),
                        max_msg_size=self._options.message_bytes_max,
                        decode_text=False,
                    )
        except TokenFailed as error:
            self.core.report("token_failed", str(error))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if dialling.when() is None:
                says = unreachable(self._config.url, error, self._options.connect_timeout_s)
                self.core.report("unreachable", without_tokens(says, self._token))
        else:
            if dialling.when() is None:
                return socket
            await socket.close()  # the pause came with the answer
        finally:
            self._dialling = None
        return None

    async def _asked_token(self) -> str:
        """The token, however long the program takes to give it; it is told when that is long."""
        patience_s = self._options.connect_timeout_s
        says = f"the token function has not answered for {patience_s:g} s"
        alarm = self._loop.call_later(patience_s, self._guarded, lambda: self._tell("token_failed", says))
        try:
            return await self._tokens.get()
        finally:
            alarm.cancel()

    def _tell(self, code: str, message: str) -> None:
        self.core.report(code, message)
        self.core.publisher.publish()

    @contextlib.asynccontextmanager
    async def _companions(self, socket: Socket) -> AsyncIterator[None]:
        """The writer and the heartbeat of a socket; at the end of either side all of it ends."""
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
            closing, self._closing = self._closing, None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, *([closing] if closing else []), return_exceptions=True)
            await socket.close()

    async def _listen(self, socket: Socket) -> int | None:
        """Until the socket ends; gives its close code.

        Messages that are there already are handled together. While there are, `receive` does not let others on
        the loop have their turn, so the handling comes when there are no more, or as many as one batch may hold.
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
        """Take a message to be handled; False when it is none, which ends the connection."""
        try:
            message = decode(data)
        except BadMessage as error:
            self.core.report("protocol_violation", str(error))
            return False
        if message is not None:
            if not self._received:
                self._loop.call_soon(self._guarded, self._handle)
            self._received.append(Received(message))
            self._received_bytes += len(data)
        return True

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
            await asyncio.sleep(self._options.heartbeat_interval_s)
            silent_s = self._loop.time() - self._heard_at
            if silent_s > self._options.dead_after_s:
                self.core.report("dead_server", f"nothing came from the server for {silent_s:.1f} s")
                self.hang_up()
                return
            self.say("heartbeat", b"{}")

    async def leave(self, reason: str) -> None:
        """Say goodbye, so that the server lets go of the subscriptions at once (CONN-06)."""
        socket = self._socket
        if socket is not None and not socket.closed:
            payload = encode_payload({"reason": reason})
            message = self._writer.encode("disconnect", payload, time.time_ns() // 1_000_000)
            with contextlib.suppress(ConnectionError, aiohttp.ClientError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await socket.send_frame(message, WSMsgType.TEXT)
