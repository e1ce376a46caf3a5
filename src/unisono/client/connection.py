"""The socket and its life: dial, wait, dial again; heartbeats; a token when one is needed (CLIENT-08, -09).

What is said and when is the core's business. A connection only tells it what came in, and carries out what it is
told: say this, hang up, try again, stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from typing import Literal, TypeAlias

import aiohttp
from aiohttp import ClientWebSocketResponse, ClientWSTimeout, WSMsgType

from unisono.client.config import Config
from unisono.client.core import Core
from unisono.client.steps import Dialing, Lost, Opened, Received, Tick
from unisono.client.tokens import TokenFailed, TokenSource
from unisono.client.wire import BadMessage, Speaker, connect_payload, decode

Socket: TypeAlias = "ClientWebSocketResponse[Literal[False]]"
"""One that gives text as bytes."""

CLOSE_TIMEOUT_S = 1.0
"""How long a peer may take to answer a close: nothing depends on its answer."""

TURN_S = 0.01
"""Messages that are there already are handled for so long before others on the loop get their turn."""


class Connection:
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
        self._speaker = Speaker()
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._token = ""
        self._tries = 0
        self._heard_at = 0.0
        self._may_dial = asyncio.Event()
        self._may_dial.set()
        self._hurry = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[object] | None = None
        self._life: asyncio.Task[object] | None = None
        self.failure: Exception | None = None

    # -- what the core asks (its Line) -----------------------------------------------------------------------

    def connect(self, last_committed_id: int) -> None:
        payload = connect_payload(
            token=self._token,
            client_id=self._config.client_id,
            profile=self._config.profile,
            last_committed_id=last_committed_id,
        )
        self.say("connect", payload)

    def say(self, kind: str, payload: bytes) -> None:
        self._outgoing.put_nowait(self._speaker.say(kind, payload, time.time_ns() // 1_000_000))

    def hang_up(self) -> None:
        socket = self._socket
        if socket is not None and not socket.closed and self._closing is None:
            self._closing = self._loop.create_task(socket.close())

    def retry(self, new_token: bool) -> None:
        if new_token and self._tokens.refused():
            self._hurry.set()  # a newer token is to be had at once: no reason to wait

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
        try:
            self.core.feed(Tick())
        except Exception as error:  # nobody waits for an alarm: end the life it belongs to
            self.failure = error
            assert self._life is not None
            self._life.cancel()

    # -- what the program asks -------------------------------------------------------------------------------

    def pause(self) -> None:
        """Go offline and stay there."""
        self._may_dial.clear()
        self.hang_up()

    def resume(self) -> None:
        """Go online now, also after having been stopped."""
        self.core.publisher.stopped = None
        self._tries = 0
        self._may_dial.set()
        if self._socket is None:
            self._hurry.set()
        self.core.publisher.publish()

    # -- the life --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        self._life = asyncio.current_task()
        timeout = aiohttp.ClientTimeout(total=None)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session:
                while True:
                    await self._may_dial.wait()
                    self._hurry.clear()
                    self.core.feed(Dialing())
                    lasted_s, code = await self._once(session)
                    self._tries = 0 if lasted_s >= self._options.stable_after_s else self._tries + 1
                    self.core.feed(Lost(code))
                    if self._may_dial.is_set():
                        await self._wait()
        finally:
            if self._alarm is not None:
                self._alarm.cancel()

    async def _wait(self) -> None:
        """Exponential backoff with full jitter, cut short when there is reason to hurry."""
        doubled = self._options.backoff_base_s * 2.0 ** min(self._tries, 32)
        delay_s = random.uniform(0, min(self._options.backoff_cap_s, doubled))  # noqa: S311
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), delay_s)

    async def _once(self, session: aiohttp.ClientSession) -> tuple[float, int | None]:
        """One socket from its opening to its end; how long it was open, and its close code."""
        try:
            self._token = await self._tokens.get()
            async with asyncio.timeout(self._options.connect_timeout_s):
                socket = await session.ws_connect(
                    self._config.url,
                    timeout=ClientWSTimeout(ws_close=CLOSE_TIMEOUT_S),
                    max_msg_size=self._options.message_bytes_max,
                    decode_text=False,
                )
        except TokenFailed as error:
            self.core.report("token_failed", str(error))
            return 0.0, None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self.core.report("unreachable", f"{type(error).__name__}: {error}")
            return 0.0, None
        opened_at = self._loop.time()
        if not self._may_dial.is_set():
            await socket.close()
            return 0.0, None
        async with self._companions(socket):
            self.core.feed(Opened())
            code = await self._listen(socket)
        return self._loop.time() - opened_at, code

    @contextlib.asynccontextmanager
    async def _companions(self, socket: Socket) -> AsyncIterator[None]:
        """The writer and the heartbeat of a socket; at the end of either side all of it ends."""
        self._socket = socket
        self._speaker = Speaker()
        self._outgoing = asyncio.Queue()
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
        turn_ends = self._loop.time() + TURN_S
        while True:
            frame = await socket.receive()
            self._heard_at = self._loop.time()
            if frame.type is WSMsgType.TEXT:
                if not self._heard(frame.data):
                    return None
            else:
                return socket.close_code
            if self._heard_at > turn_ends:
                await asyncio.sleep(0)
                turn_ends = self._loop.time() + TURN_S

    def _heard(self, data: bytes) -> bool:
        """False when it was no message of this protocol, which ends the connection."""
        try:
            message = decode(data)
        except BadMessage as error:
            self.core.report("protocol_violation", str(error))
            return False
        if message is not None:
            self.core.feed(Received(message))
        return True

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

    async def leave(self) -> None:
        """Say goodbye, so that the server lets go of the subscriptions at once."""
        socket = self._socket
        if socket is not None and not socket.closed:
            message = self._speaker.say(
                "disconnect", b'{"reason":"client_shutdown"}', time.time_ns() // 1_000_000
            )
            with contextlib.suppress(ConnectionError, aiohttp.ClientError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await socket.send_frame(message, WSMsgType.TEXT)
