"""How long a rule may run: it is interrupted from outside, wherever it is, but never in the middle of a change.

In the main thread of a process the kernel's timer sends SIGALRM, which also ends a sleep, a regular expression that
backtracks and the multiplication of huge integers. In any other thread a watching thread raises the exception there,
which happens between two steps of Python code only. Both look at what the thread is doing first:

- Where it is within a function that is `whole`, changing a container and its journal together, they come again a
  little later. So the state can always be rolled back exactly.
- Where the rule is not running at all, because it has just returned, they do nothing.

The time of a rule is the CPU time of its thread: a machine that is busy with other things, or stands still, must not
make the server refuse what is right. A rule that waits is stopped when `PATIENCE` times its time have passed.

A rule that catches the exception gets it again every few milliseconds. One that never leaves C code, or catches it in
an endless loop, cannot be interrupted; whoever runs the server ends the process (`unisono.authority.stuck`).
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final, Protocol, TypeVar

AGAIN_S: Final = 0.005
"""Between two attempts to interrupt a rule that caught the first, or was in the middle of a change."""

PATIENCE: Final = 2
"""How much longer than its time a rule may take by the clock on the wall."""

F = TypeVar("F", bound=Callable[..., Any])

_whole_codes: set[CodeType] = set()


class RuleTimeout(BaseException):
    """The time of a rule is over. No `Exception`, so that a rule does not take it for one of its own."""


def whole(function: F) -> F:
    """A function that no limit interrupts: it is done at once, and calls nothing of a rule."""
    _whole_codes.add(function.__code__)
    return function


def _may_interrupt(frame: FrameType | None, boundary: FrameType | None) -> bool:
    """Whether a thread at `frame` is in the function that was called at `boundary`, and in nothing whole."""
    if frame is boundary:
        return False
    while frame is not None and frame is not boundary:
        if frame.f_code in _whole_codes:
            return False
        frame = frame.f_back
    return frame is not None


class Spent:
    """The time a thread has used since this was made, as it counts for a rule."""

    __slots__ = ("_cpu_s", "_wall_s")

    def __init__(self) -> None:
        self._cpu_s = time.thread_time()
        self._wall_s = time.monotonic()

    def seconds(self, thread: int | None = None) -> float:
        """`thread`: which one it is, when another one asks."""
        cpu_s = time.thread_time() if thread is None else _cpu_time_of(thread)
        return max(cpu_s - self._cpu_s, (time.monotonic() - self._wall_s) / PATIENCE)


def _cpu_time_of(thread: int) -> float:
    return time.clock_gettime(time.pthread_getcpuclockid(thread))


class AlarmLimit:
    """For the main thread: the kernel's timer. It takes SIGALRM for itself."""

    def __init__(self) -> None:
        self._boundary: FrameType | None = None
        self._seconds = 0.0
        self._spent = Spent()
        self._rang = False
        signal.signal(signal.SIGALRM, self._ring)

    def run(self, seconds: float, spent: Spent, function: Callable[..., Any], *arguments: Any) -> Any:
        self._boundary, self._seconds, self._spent, self._rang = sys._getframe(), seconds, spent, False
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
        try:
            returned = function(*arguments)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._boundary = None
        if self._rang:
            raise RuleTimeout  # the rule caught it
        return returned

    def _ring(self, _signal: int, frame: FrameType | None) -> None:
        if self._boundary is None or self._spent.seconds() < self._seconds:
            return
        if _may_interrupt(frame, self._boundary):
            self._rang = True
            raise RuleTimeout


class ThreadLimit:
    """For any other thread: one that watches it, started with the first call and ending with the process.

    What was raised in the thread and has not come when the rule returned is taken back: it comes nowhere else.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed = threading.Event()
        self._call: tuple[int, FrameType, float, Spent] | None = None
        self._rang = False
        threading.Thread(target=self._watch, name="rule limit", daemon=True).start()

    def run(self, seconds: float, spent: Spent, function: Callable[..., Any], *arguments: Any) -> Any:
        self._rang = False
        try:
            self._armed.set()
            self._call = threading.get_ident(), sys._getframe(), seconds, spent
            try:
                returned = function(*arguments)
            finally:
                self._disarm()
            if self._rang:
                raise RuleTimeout  # the rule caught it, or it came too late for it
        except RuleTimeout:
            while self._call is not None:  # it came while this was being disarmed
                try:
                    self._disarm()
                except RuleTimeout:
                    continue
            raise
        return returned

    @whole
    def _disarm(self) -> None:
        with self._lock:
            self._call = None
        self._armed.clear()
        if self._rang:
            _raise_in(threading.get_ident(), None)

    def _watch(self) -> None:
        while True:
            self._armed.wait()
            time.sleep(AGAIN_S)
            with self._lock:
                if self._call is None:
                    continue
                thread, boundary, seconds, spent = self._call
                if spent.seconds(thread) < seconds:
                    continue
                if _may_interrupt(sys._current_frames().get(thread), boundary):
                    self._rang = True
                    _raise_in(thread, RuleTimeout)


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    raised = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)


class Limit(Protocol):
    """Runs a function until `spent` says so many seconds; `RuleTimeout` then."""

    def run(self, seconds: float, spent: Spent, function: Callable[..., Any], *arguments: Any) -> Any: ...


def limit_of_this_thread() -> Limit:
    """The one that fits where it is called."""
    if threading.current_thread() is threading.main_thread():
        return AlarmLimit()
    return ThreadLimit()
