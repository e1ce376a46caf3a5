"""A thread for one piece of work on data that nothing else uses meanwhile.

Decoding or packing a large snapshot takes seconds. In a thread it shares the interpreter with the group loop, so
commits become somewhat slower instead of stopping.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

SWITCH_S: Final = 0.0005
"""How long such a thread may keep the interpreter while the loop waits for it; every commit would wait for the
default of 5 ms several times."""


class OneShotThread(Generic[T]):
    """One piece of work and its result."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._result: T | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="one shot", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> T:
        """Return what the work returned, or raise what it raised; waits for its end."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def _run(self) -> None:
        try:
            self._result = self._work()
        except Exception as error:
            self._error = error
