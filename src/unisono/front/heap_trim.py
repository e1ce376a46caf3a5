"""Gives memory back to the operating system after many connections have left.

The C library keeps the memory of freed connections in its heap, some 10 KiB each, and would keep it for ever.
"""

from __future__ import annotations

import asyncio
import ctypes
from typing import Final

MIN_PEAK: Final = 500
"""Fewer sockets than this are not worth a look at the heap."""

QUIET_S: Final = 1.0
"""Sockets leave in crowds: the heap is trimmed once, when the crowd has left."""

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it; other libraries do not keep as much


class HeapTrim:
    """Trims the heap when the number of sockets has fallen below half of its peak since the last time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._peak = 0
        self._waiting = False

    def left(self, count: int) -> None:
        """One socket has left, and so many are still open."""
        if count >= self._peak:
            self._peak = count + 1
        elif self._peak >= MIN_PEAK and count < self._peak // 2 and not self._waiting and _trim is not None:
            self._waiting = True
            self._peak = count
            self._loop.call_later(QUIET_S, self._now)

    def _now(self) -> None:
        self._waiting = False
        if _trim is not None:
            _trim(0)
