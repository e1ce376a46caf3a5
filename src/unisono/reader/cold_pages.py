"""Pages that need the archive, read in a thread beside the reader's loop, so that others' pages do not wait for them.

An archive can be far away and slow. The thread has a log of its own, reads one page at a time, and rings when one
is done; only the loop talks to fronts. What waits here is bounded by what fronts may ask: a connection has one page
under way at a time, a front asks for so many bytes of them (`max_sync_queue_bytes`), and a page whose connection is
gone is cancelled.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import OrderedDict, deque
from typing import Final, Generic, Protocol, TypeVar

from unisono.ipc.messages import AskPage, PageFailed, PageResult
from unisono.lake.cold.archive import ColdWatermarks

RINGS_READ_MAX: Final = 4_096
"""Several rings are as good as one; what is not read now rings again."""

Answer = PageResult | PageFailed
Whose = TypeVar("Whose")


class Answering(Protocol):
    """Who reads the pages."""

    def __call__(self, ask: AskPage) -> Answer: ...

    def close(self) -> None: ...


class ColdPages(Generic[Whose]):
    """Takes questions with whose they are and gives back answers likewise; readable when there are some.

    `answer` is only ever called in the thread. Questions are answered in the order they came.
    """

    def __init__(self, answer: Answering) -> None:
        self._answer = answer
        self._asked: OrderedDict[tuple[Whose, int], AskPage] = OrderedDict()
        self._changed = threading.Condition()
        self._closed = False
        self._answered: deque[tuple[Whose, Answer]] = deque()
        self._failure: BaseException | None = None
        self._sets = ColdWatermarks()
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="cold pages", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self._asked)

    def fileno(self) -> int:
        return self._bell.fileno()

    def wants(self, ask: AskPage) -> bool:
        """Whether this history was read from the archive last and is still likely to be."""
        return ask.since < self._sets.upto(ask.partitions)

    def note(self, ask: AskPage, pruned_to: int) -> None:
        self._sets.note(ask.partitions, pruned_to)

    def ask(self, whose: Whose, ask: AskPage) -> None:
        with self._changed:
            self._asked[whose, ask.ticket] = ask
            self._changed.notify()

    def cancel(self, whose: Whose, ticket: int) -> bool:
        """True when the question still waited, and is not answered any more."""
        with self._changed:
            return self._asked.pop((whose, ticket), None) is not None

    def forget(self, whose: Whose) -> None:
        """Nobody is there to be told of any of these."""
        with self._changed:
            for key in [key for key in self._asked if key[0] is whose]:
                del self._asked[key]

    def answers(self) -> list[tuple[Whose, Answer]]:
        """Those that are ready; raises what ended the thread."""
        with contextlib.suppress(BlockingIOError):
            self._bell.recv(RINGS_READ_MAX)
        if self._failure is not None:
            raise self._failure
        ready = []
        while self._answered:
            ready.append(self._answered.popleft())
        return ready

    def close(self) -> None:
        """Ends the thread after the page it is reading, without waiting for it."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._bell.close()

    def _next(self) -> tuple[Whose, AskPage] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._asked or self._closed)
            if self._closed:
                return None
            (whose, _), ask = self._asked.popitem(last=False)
            return whose, ask

    def _run(self) -> None:
        with self._rope:
            try:
                while (asked := self._next()) is not None:
                    self._answered.append((asked[0], self._answer(asked[1])))
                    self._ring()
                self._answer.close()
            except BaseException as error:
                self._failure = error
                self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody waits any more
            self._rope.send(b"!")
