"""A TCP proxy that makes a connection as bad as connections get, between a client and a server that are real.

It delays, splits and merges what passes, lets it trickle, cuts at a chosen byte, cuts right after something was sent,
goes deaf with the sockets still open, and refuses. What passes is never changed. With a recorder the history has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from random import Random
from urllib.parse import urlsplit

from tests.history.recorder import Recorder
from tests.history.wiretap import Wiretap


class Proxy:
    """Listens on a port of its own from `with` on; every knob may be turned at any time, from any thread."""

    def __init__(self, url: str, seed: int = 0, recorder: Recorder | None = None) -> None:
        self.aim(url)
        self._recorder = recorder
        self.random = Random(seed)
        self.delay_s = 0.0
        self.chop = False
        self.trickle_s = 0.0
        self.deaf = False
        self.refusing = False
        self.cut_down_after: int | None = None
        self.cut_after_next_up = False
        self.connections = 0
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server

    def aim(self, url: str) -> None:
        """Where new connections go."""
        self._target = urlsplit(url)

    def __enter__(self) -> Proxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """Every connection is gone at once."""
        self._loop.call_soon_threadsafe(self._cut)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"ws://127.0.0.1:{port}{self._target.path}"

    async def _close(self) -> None:
        self._server.close()
        self._cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)

    def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.refusing:
            writer.transport.abort()
            return
        try:
            up_reader, up_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, up_writer)
        self._writers.update(pair)
        tap = None if self._recorder is None else Wiretap(self._recorder)
        for source, sink, up in ((reader, up_writer, True), (up_reader, writer, False)):
            task = self._loop.create_task(self._pump(source, sink, up, pair, tap))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        up: bool,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
        tap: Wiretap | None,
    ) -> None:
        passed = 0
        with contextlib.suppress(ConnectionError, OSError):
            while data := await source.read(65536):
                if tap is not None:
                    tap.feed("sent" if up else "received", data)
                while self.deaf:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                if self.delay_s:
                    await asyncio.sleep(self.random.uniform(0, self.delay_s))
                limit = None if up else self.cut_down_after
                if limit is not None and passed + len(data) > limit:
                    await self._forward(sink, data[: max(0, limit - passed)])
                    break
                await self._forward(sink, data)
                passed += len(data)
                if up and self.cut_after_next_up:
                    self.cut_after_next_up = False
                    await asyncio.sleep(
                        0.05
                    )  # the server has it; its answer is held by the other pump's fate
                    break
        for writer in pair:
            writer.transport.abort()
            self._writers.discard(writer)
        if tap is not None and not up:
            tap.closed()

    async def _forward(self, sink: asyncio.StreamWriter, data: bytes) -> None:
        while data:
            size = self.random.randint(1, 40) if self.chop or self.trickle_s else len(data)
            piece, data = data[:size], data[size:]
            sink.write(piece)
            await sink.drain()
            if self.chop or self.trickle_s:
                await asyncio.sleep(self.trickle_s)
