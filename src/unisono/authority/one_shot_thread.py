"""Work on a state that nobody else holds, in a thread beside the loop.

The interpreter shares its time between the two, so commits go on, somewhat slower, where they would otherwise
stop for seconds: taking a large snapshot apart or putting one together is one long piece of work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

SWITCH_S: Final = 0.0005
"""How long such a thread may keep the interpreter while the loop wants it; the usual 5 ms would be paid several
times in every commit."""


class OneShotThread(Generic[T]):
    """One piece of work and what came of it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._result: T | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="background", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> T:
        """What the work gave, or raises what it raised; only once it is done."""
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
