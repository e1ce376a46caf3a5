"""Pages that need the archive, read in a thread, so that pages of the hot log do not wait for them.

An archive can be remote and slow. The thread has a log reader of its own and reads one page at a time; only the loop
of the process sends to fronts. The queue is bounded by what fronts may ask: each connection has one page under way,
a front limits their bytes (`max_sync_queue_bytes`), and the pages of a closed connection are cancelled.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import OrderedDict, deque
from typing import Final, Generic, Protocol, TypeVar

from unisono.ipc.page_messages import AskNewest, AskPage, PageFailed, PageResult

WAKEUP_BYTES_MAX: Final = 4_096
"""Wakeup bytes read at once; several mean the same as one, and bytes left over wake the loop again."""

PageAsk = AskPage | AskNewest
PageAnswer = PageResult | PageFailed
Asker = TypeVar("Asker")


class PageSource(Protocol):
    """Reads the pages; only called in the thread."""

    def __call__(self, ask: PageAsk) -> PageAnswer: ...

    def close(self) -> None: ...


class ColdPages(Generic[Asker]):
    """A queue of pages to read, answered in order. Its `fileno` is readable when there are answers.

    An asker is whoever gets the answer, such as a channel.
    """

    def __init__(self, source: PageSource) -> None:
        self._source = source
        self._queue: OrderedDict[tuple[Asker, int], PageAsk] = OrderedDict()
        self._changed = threading.Condition()
        self._closed = False
        self._answers: deque[tuple[Asker, PageAnswer]] = deque()
        self._failure: BaseException | None = None
        self._wakeup_receiver, self._wakeup_sender = socket.socketpair()
        self._wakeup_receiver.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="cold pages", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """The number of pages that are not being read yet."""
        return len(self._queue)

    def fileno(self) -> int:
        return self._wakeup_receiver.fileno()

    def ask(self, asker: Asker, ask: PageAsk) -> None:
        with self._changed:
            self._queue[asker, ask.ticket] = ask
            self._changed.notify()

    def cancel(self, asker: Asker, ticket: int) -> bool:
        """Whether the page was still queued; it is not answered then."""
        with self._changed:
            return self._queue.pop((asker, ticket), None) is not None

    def cancel_all(self, asker: Asker) -> None:
        """Cancel the queued pages of an asker that is gone."""
        with self._changed:
            for key in [key for key in self._queue if key[0] is asker]:
                del self._queue[key]

    def take_answers(self) -> list[tuple[Asker, PageAnswer]]:
        """The answers that are ready; raises what ended the thread."""
        with contextlib.suppress(BlockingIOError):
            self._wakeup_receiver.recv(WAKEUP_BYTES_MAX)
        if self._failure is not None:
            raise self._failure
        ready = []
        while self._answers:
            ready.append(self._answers.popleft())
        return ready

    def close(self) -> None:
        """End the thread after the page it is reading, without waiting for it."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._wakeup_receiver.close()

    def _next(self) -> tuple[Asker, PageAsk] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed)
            if self._closed:
                return None
            (asker, _), ask = self._queue.popitem(last=False)
            return asker, ask

    def _run(self) -> None:
        with self._wakeup_sender:
            try:
                while (queued := self._next()) is not None:
                    asker, ask = queued
                    self._answers.append((asker, self._source(ask)))
                    self._wake_loop()
                self._source.close()
            except BaseException as error:
                self._failure = error
                self._wake_loop()

    def _wake_loop(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # the loop has ended
            self._wakeup_sender.send(b"!")
