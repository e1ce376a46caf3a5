"""How long a rule may run: it is interrupted from outside, wherever it is, but never in the middle of a change.

In the main thread of a process the kernel's timer sends SIGALRM, which also ends a sleep, a regular expression that
backtracks and the multiplication of huge integers. In any other thread a watching thread raises the exception there,
which happens between two steps of Python code only. Both look at what the thread is doing first:

- Where it is within a function that is `whole`, changing a container and its journal together, they come again a
  little later. So the state can always be rolled back exactly.
- Where the rule is not running at all, because it has just returned, they do nothing.

A rule that catches the exception gets it again every few milliseconds. One that never leaves C code, or catches it in
an endless loop, cannot be interrupted; whoever runs the server ends the process (`unisono.authority.stuck`).
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections.abc import Callable
from time import monotonic
from types import CodeType, FrameType
from typing import Any, Final, Protocol, TypeVar

AGAIN_S: Final = 0.005
"""Between two attempts to interrupt a rule that caught the first, or was in the middle of a change."""

F = TypeVar("F", bound=Callable[..., Any])

_whole_codes: set[CodeType] = set()


class RuleTimeout(BaseException):
    """The time of a rule is over. No `Exception`, so that a rule does not take it for one of its own."""


def whole(function: F) -> F:
    """A function that no limit interrupts: it is done at once, and calls nothing of a rule."""
    _whole_codes.add(function.__code__)
    return function


class Limit(Protocol):
    """Runs a function for so many seconds at most; `RuleTimeout` when they are over."""

    def run(self, seconds: float, function: Callable[..., Any], *arguments: Any) -> Any: ...


def _may_interrupt(frame: FrameType | None, boundary: FrameType | None) -> bool:
    """Whether a thread at `frame` is in the function that was called at `boundary`, and in nothing whole."""
    if frame is boundary:
        return False
    while frame is not None and frame is not boundary:
        if frame.f_code in _whole_codes:
            return False
        frame = frame.f_back
    return frame is not None


class AlarmLimit:
    """For the main thread: the kernel's timer. It takes SIGALRM for itself."""

    def __init__(self) -> None:
        self._boundary: FrameType | None = None
        signal.signal(signal.SIGALRM, self._ring)

    def run(self, seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
        self._boundary = sys._getframe()
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
        try:
            return function(*arguments)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._boundary = None

    def _ring(self, _signal: int, frame: FrameType | None) -> None:
        if self._boundary is not None and _may_interrupt(frame, self._boundary):
            raise RuleTimeout


class ThreadLimit:
    """For any other thread: one that watches it, started by the first call and ending with the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed = threading.Event()
        self._until: float | None = None
        self._boundary: FrameType | None = None
        self._thread = 0
        self._raised = False
        threading.Thread(target=self._watch, name="rule limit", daemon=True).start()

    def run(self, seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            self._arm(seconds, sys._getframe())
            try:
                return function(*arguments)
            finally:
                self._disarm()
        except RuleTimeout:
            while self._until is not None or self._raised:  # it may have come while this was being disarmed
                try:
                    self._disarm()
                except RuleTimeout:
                    continue
            raise

    def _arm(self, seconds: float, boundary: FrameType) -> None:
        self._thread, self._boundary = threading.get_ident(), boundary
        self._until = monotonic() + seconds
        self._armed.set()

    def _disarm(self) -> None:
        """Afterwards nothing is raised any more: neither anew, nor what was raised and has not come yet."""
        with self._lock:
            self._until = None
        self._armed.clear()
        self._boundary = None
        if self._raised:
            _raise_in(self._thread, None)
            self._raised = False

    def _watch(self) -> None:
        while True:
            self._armed.wait()
            until = self._until
            if until is None:
                continue
            threading.Event().wait(max(AGAIN_S, min(until - monotonic(), 0.05)))
            with self._lock:
                if self._until is None or monotonic() < self._until:
                    continue
                if _may_interrupt(sys._current_frames().get(self._thread), self._boundary):
                    self._raised = True
                    _raise_in(self._thread, RuleTimeout)


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    raised = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)


def limit_of_this_thread() -> Limit:
    """The one that fits where it is called."""
    if threading.current_thread() is threading.main_thread():
        return AlarmLimit()
    return ThreadLimit()
