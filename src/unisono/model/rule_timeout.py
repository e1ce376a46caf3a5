"""How long a rule may run: it is interrupted from outside, wherever it is, but never in the middle of a change.

In the main thread of a process the kernel's timer sends SIGALRM, which also ends a sleep, a regular expression that
backtracks and the multiplication of huge integers. In any other thread a watching thread raises the exception there,
which happens between two steps of Python code only. Both look at what the thread is doing first:

- Where it is within a function that is `whole`, changing a container and its journal together, they come again a
  little later. So the state can always be rolled back exactly.
- Where the rule is not running at all, because it has just returned, they do nothing.

The time of a rule is the CPU time of its thread: a machine that is busy with other things, or stands still, must not
make the server refuse what is right. A rule that waits is stopped after about `PATIENCE` times its time.

A rule that catches the exception gets it again every few milliseconds. So does one in which a callback of the
interpreter was running (of a weak reference, of the collector), where exceptions are printed and ignored. A rule that
never leaves C code, or catches it in an endless loop, cannot be interrupted; whoever runs the server ends the process
(`unisono.authority.stuck_rules`).
"""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, ClassVar, Final, Protocol, TypeAlias, TypeVar

AGAIN_S: Final = 0.005
"""Between two attempts to interrupt a rule that caught the first, or was in the middle of a change."""

PATIENCE: Final = 2
"""How much longer than its time a rule may take that waits more than it works."""

BRIEF_S: Final = 0.0005
"""Of a rule that took no longer, all its time counts as its own: asking for the time of the thread takes longer."""

CPU_TIME_AGE: Final = 0.01
"""Part of the time a rule is allowed for which the CPU time of its thread is not asked again."""

F = TypeVar("F", bound=Callable[..., Any])

RuleCall: TypeAlias = Callable[[Any, Any], Any]
"""A rule, to be called with a state and an event."""

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


class ThreadTime:
    """The time a thread has used since `began_s` of the monotonic clock.

    Asking for the CPU time of a thread takes longer than most rules, so one answer serves all calls that begin soon
    after it. The time in between counts as used before the call: what a call is said to use is never too much, and
    too little by `CPU_TIME_AGE` of what it is allowed at most.
    """

    __slots__ = ("_asked_s", "_cpu_s", "began_s")

    def __init__(self) -> None:
        self._cpu_s = time.thread_time()
        self.began_s = self._asked_s = time.monotonic()

    def restart(self, seconds: float) -> None:
        """A call that is allowed so many seconds begins."""
        self.began_s = now_s = time.monotonic()
        if now_s - self._asked_s > seconds * CPU_TIME_AGE:
            self._cpu_s = time.thread_time()
            self._asked_s = now_s

    def cpu_s(self, thread: int | None = None) -> float:
        """`thread`: which one it is, when another one asks."""
        used_s = (time.thread_time() if thread is None else _cpu_time_of(thread)) - self._cpu_s
        return used_s - (self.began_s - self._asked_s)

    def wall_s(self) -> float:
        return time.monotonic() - self.began_s

    def counted_s(self, seconds: float) -> float:
        """What counts of it where `seconds` were allowed; time in which the machine stood still does so in part."""
        wall_s = self.wall_s()
        if wall_s < BRIEF_S:
            return wall_s
        return max(self.cpu_s(), min(wall_s, seconds) / PATIENCE)


def _cpu_time_of(thread: int) -> float:
    return time.clock_gettime(time.pthread_getcpuclockid(thread))


class AlarmLimit:
    """For the main thread: the kernel's timer. It takes SIGALRM for itself.

    The timer runs on from one rule to the next, since setting it takes longer than most rules: it is set again where
    it would ring too late or has rung already, and stopped by `rest`, when it rings and no rule is running, and when
    the process ends. The process has one timer: whoever runs a rule takes it over from another one.
    """

    owner: ClassVar[AlarmLimit | None] = None

    def __init__(self) -> None:
        self._boundary: FrameType | None = None
        self._seconds = 0.0
        self.spent = ThreadTime()
        self._rings = 0
        self._raised = False
        self._rings_at_s = math.inf
        """When the timer rings first; from then on it does every AGAIN_S. Infinite while it is stopped."""

    def run(self, seconds: float, function: RuleCall, state: Any, event: Any) -> Any:
        spent = self.spent
        spent.restart(seconds)
        self._boundary, self._seconds = sys._getframe(), seconds
        self._rings, self._raised = 0, False
        if AlarmLimit.owner is not self:
            signal.signal(signal.SIGALRM, self._ring)
            AlarmLimit.owner, self._rings_at_s = self, math.inf
        began_s = spent.began_s
        rings_at_s = began_s + seconds
        if not began_s <= self._rings_at_s <= rings_at_s:
            self._rings_at_s = rings_at_s
            signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
        try:
            returned = function(state, event)
        finally:
            self._boundary = None
        if self._raised:
            raise RuleTimeout  # the rule caught it
        return returned

    def rest(self) -> None:
        if self._rings_at_s != math.inf and AlarmLimit.owner is self:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._rings_at_s = math.inf

    def _ring(self, _signal: int, frame: FrameType | None) -> None:
        if self._boundary is None:
            self.rest()
            return
        self._rings += self.spent.wall_s() >= self._seconds
        over = self.spent.cpu_s() >= self._seconds or _waited(self._rings, self._seconds)
        if over and _may_interrupt(frame, self._boundary):
            self._raised = True
            raise RuleTimeout


def _release_timer() -> None:
    """The interpreter restores the default action of SIGALRM when it ends, which is to end the process."""
    if AlarmLimit.owner is not None:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _forget_owner() -> None:
    """A forked process has no timer yet."""
    AlarmLimit.owner = None


atexit.register(_release_timer)
os.register_at_fork(after_in_child=_forget_owner)


def _waited(rings: int, seconds: float) -> bool:
    """Whether a rule that uses little CPU has had its time, by how often it was looked at since the first time.

    A wall clock would also count the time in which the process was suspended.
    """
    return rings * AGAIN_S >= seconds * (PATIENCE - 1)


class ThreadLimit:
    """For any other thread: one that watches it, started with the first call and ending with the process.

    What was raised in the thread and has not come when the rule returned is taken back: it comes nowhere else.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed = threading.Event()
        self._call: tuple[int, FrameType, float] | None = None
        self.spent = ThreadTime()
        self._rings = 0
        self._raised = False
        threading.Thread(target=self._watch, name="rule limit", daemon=True).start()

    def run(self, seconds: float, function: RuleCall, state: Any, event: Any) -> Any:
        self.spent.restart(seconds)
        self._rings, self._raised = 0, False
        try:
            self._armed.set()
            self._call = threading.get_ident(), sys._getframe(), seconds
            try:
                returned = function(state, event)
            finally:
                self._disarm()
            if self._raised:
                raise RuleTimeout  # the rule caught it, or it came too late for it
        except RuleTimeout:
            while self._call is not None:  # it came while this was being disarmed
                try:
                    self._disarm()
                except RuleTimeout:
                    continue
            raise
        return returned

    def rest(self) -> None:
        """Nothing runs on between two rules."""

    @whole
    def _disarm(self) -> None:
        with self._lock:
            self._call = None
        self._armed.clear()
        if self._raised:
            _raise_in(threading.get_ident(), None)

    def _watch(self) -> None:
        while True:
            self._armed.wait()
            time.sleep(AGAIN_S)
            with self._lock:
                if self._call is None:
                    continue
                thread, boundary, seconds = self._call
                self._rings += self.spent.wall_s() > seconds
                if self.spent.cpu_s(thread) < seconds and not _waited(self._rings, seconds):
                    continue
                if _may_interrupt(sys._current_frames().get(thread), boundary):
                    self._raised = True
                    _raise_in(thread, RuleTimeout)


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    raised = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)


class Limit(Protocol):
    """Runs a function until `spent`, its time, says so many seconds; `RuleTimeout` then."""

    spent: ThreadTime

    def run(self, seconds: float, function: RuleCall, state: Any, event: Any) -> Any: ...

    def rest(self) -> None:
        """No rule is called for a while."""
        ...


def limit_of_this_thread() -> Limit:
    """The one that fits where it is called."""
    if threading.current_thread() is threading.main_thread():
        return AlarmLimit()
    return ThreadLimit()
