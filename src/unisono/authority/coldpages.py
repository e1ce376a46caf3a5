"""Pages that need the archive, read in a thread beside the reader's loop, so that others' pages do not wait for them.

An archive can be far away and slow. The thread has a log of its own, reads one page at a time, and rings when one
is done; only the loop talks to fronts. A connection has one page under way at a time, which bounds what waits here.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from queue import SimpleQueue
from typing import Final, Generic, Protocol, TypeVar

from unisono.authority.channel import AskPage, PageFailed, PageOf
from unisono.store.archive import ColdSets

RINGS_READ_MAX: Final = 4_096
"""Several rings are as good as one; what is not read now rings again."""

Answer = PageOf | PageFailed
Whose = TypeVar("Whose")


class Answering(Protocol):
    """Who reads the pages."""

    def __call__(self, ask: AskPage) -> Answer: ...

    def close(self) -> None: ...


class ColdPages(Generic[Whose]):
    """Takes questions with whose they are and gives back answers likewise; readable when there are some.

    `answer` is only ever called in the thread.
    """

    def __init__(self, answer: Answering) -> None:
        self._answer = answer
        self._asked: SimpleQueue[tuple[Whose, AskPage] | None] = SimpleQueue()
        self._answered: deque[tuple[Whose, Answer]] = deque()
        self._failure: BaseException | None = None
        self._sets = ColdSets()
        self._bell, self._rope = socket.socketpair()
        self._bell.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="cold pages", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        return self._bell.fileno()

    def wants(self, ask: AskPage) -> bool:
        """Whether this history was read from the archive last and is still likely to be."""
        return ask.since < self._sets.upto(ask.partitions)

    def note(self, ask: AskPage, pruned_to: int) -> None:
        self._sets.note(ask.partitions, pruned_to)

    def ask(self, whose: Whose, ask: AskPage) -> None:
        self._asked.put((whose, ask))

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
        self._asked.put(None)
        self._bell.close()

    def _run(self) -> None:
        with self._rope:
            try:
                while (asked := self._asked.get()) is not None:
                    self._answered.append((asked[0], self._answer(asked[1])))
                    self._ring()
                self._answer.close()
            except BaseException as error:
                self._failure = error
                self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody waits any more
            self._rope.send(b"!")
