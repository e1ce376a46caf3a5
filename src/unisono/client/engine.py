"""The engine: one background thread with an event loop of its own, in which a client runs.

The program's own loop or notebook is never blocked by a sync, a long fold or the disk. Its calls are posted to the
engine and answered by futures that any thread, or any loop, can wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import apsw

from unisono.client.config import Config
from unisono.client.core import Core
from unisono.client.errors import ClientClosed, ClientError, StoreFailed
from unisono.client.history import HistoryPage
from unisono.client.net.connection import ServerConnection
from unisono.client.net.tokens import TokenSource
from unisono.client.presence import PresenceBoard
from unisono.client.store.checksums import store_failure
from unisono.client.submit import SubmitRequest, Ticket

log = logging.getLogger("unisono.client")

T = TypeVar("T")


class Engine:
    """Starts, runs and ends a client's thread.

    Invariant: every future handed out is resolved, at the latest when the thread ends.
    """

    def __init__(self, config: Config, program_loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._config = config
        self._program_loop = program_loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"unisono-client-{config.client_id}", daemon=True
        )
        self._started: Future[None] = Future()
        self._ended: Future[None] = Future()
        self._end: asyncio.Event
        self._submits: deque[tuple[SubmitRequest, Future[Ticket]]] = deque()
        self._open_calls: set[Future[object]] = set()
        self.core: Core
        self._connection: ServerConnection

    # -- from any thread -------------------------------------------------------------------------------------

    def start(self) -> Future[None]:
        """Open the store and start the thread; the future fails with the reason when the client cannot start."""
        self._started.set_running_or_notify_cancel()
        self._ended.set_running_or_notify_cancel()
        self._thread.start()
        return self._started

    @property
    def ended(self) -> bool:
        return self._ended.done()

    def call(self, function: Callable[[Core], T]) -> Future[T]:
        """Call a function with the core, in the engine's thread."""
        future: Future[T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(self.core))
                except Exception as error:
                    future.set_exception(self._failed(error))

        self._post(run, future)
        return future

    def submit(self, request: SubmitRequest) -> Future[Ticket]:
        """Store a draft. All drafts that are waiting go to the disk in one write."""
        future: Future[Ticket] = Future()
        self._submits.append((request, future))
        self._post(self._take_submits, future)
        return future

    def history(self, partition: str, before: int | None, limit: int) -> Future[HistoryPage]:
        """A page of history, from the store and from the server."""
        future: Future[HistoryPage] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                page = self.core.history(self._connection.history, partition, before, limit)
            except Exception as error:
                future.set_exception(self._failed(error))
            else:
                page.add_done_callback(answered)

        def answered(page: Future[HistoryPage]) -> None:
            if future.done():
                return  # the client was closed
            if (error := page.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(page.result())

        self._post(run, future)
        return future

    @property
    def presence(self) -> PresenceBoard:
        return self._connection.presence

    def pause(self) -> Future[None]:
        if self._loop is None or self._loop.is_closed():
            raise ClientClosed
        return asyncio.run_coroutine_threadsafe(self._connection.pause(), self._loop)

    def resume(self) -> Future[None]:
        return self.call(lambda _: self._connection.resume())

    def close(self) -> Future[None]:
        """End the thread; pending drafts stay in the store."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._end.set)
        return self._ended

    def _post(self, run: Callable[[], None], future: Future[T]) -> None:
        if self._loop is None:
            raise ClientClosed("the client is not open; use it in a with statement")
        self._open_calls.add(future)  # type: ignore[arg-type]
        future.add_done_callback(self._open_calls.discard)
        try:
            self._loop.call_soon_threadsafe(run)
        except RuntimeError:
            raise ClientClosed from None

    # -- in the engine's thread ------------------------------------------------------------------------------

    def _take_submits(self) -> None:
        taken: list[tuple[SubmitRequest, Future[Ticket]]] = []
        while self._submits:
            request, future = self._submits.popleft()
            if future.set_running_or_notify_cancel():
                taken.append((request, future))
        if not taken:
            return
        try:
            answers = self.core.submit([request for request, _ in taken])
        except Exception as error:
            reason = self._failed(error)
            for _, future in taken:
                future.set_exception(reason)
            return
        for (_, future), answer in zip(taken, answers, strict=True):
            if isinstance(answer, ClientError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def _failed(self, error: Exception) -> Exception:
        """A failed store is not written to again: the client stops."""
        if isinstance(error, apsw.Error | UnicodeDecodeError):
            error = store_failure(self._config.store, "using it", error)
        if isinstance(error, StoreFailed):
            self._connection.fail(error)
        return error

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception:
            log.exception("the client's engine failed")
        finally:
            for call in list(self._open_calls):
                if not call.done():
                    call.set_exception(ClientClosed())
            self._ended.set_result(None)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        tokens = TokenSource(self._config.token, self._program_loop)
        self._connection = ServerConnection(self._config, tokens)
        try:
            self.core = Core(self._config, self._connection, self._loop.time, _wall_ms)
        except BaseException as error:
            self._loop = None
            self._started.set_exception(error)
            return
        self._connection.core = self.core
        running = self._connection.start()
        ending = self._loop.create_task(self._end.wait())
        self._started.set_result(None)
        await asyncio.wait({running, ending}, return_when=asyncio.FIRST_COMPLETED)
        failure: BaseException | None = self._connection.failure
        if failure is None and running.done() and not running.cancelled():
            failure = running.exception()
        self.presence.close()
        if failure is not None:
            log.error("the client stops: %s", failure, exc_info=failure)
            self.core.close(_closing_error(failure, self._config.store))
            await ending
            return
        await self._connection.leave("client_shutdown")
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        self.core.close()


def _closing_error(failure: BaseException, store: str) -> ClientError:
    """The error of every later call after the engine failed."""
    if isinstance(failure, ClientError):
        return failure
    if isinstance(failure, apsw.Error | UnicodeDecodeError):
        return store_failure(store, "using it", failure)
    return StoreFailed(f"the client stopped after an unexpected error: {type(failure).__name__}: {failure}")


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
