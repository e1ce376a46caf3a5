"""How much freed memory a process keeps for itself.

With the defaults of the C library a process under load gives the memory of each group of messages back to the
operating system, and gets it again page by page for the next one: a third of a front's time with large batches.
"""

from __future__ import annotations

import ctypes
from typing import Final

KEPT_BYTES: Final = 16 * 1024 * 1024
"""Freed memory at the end of the heap that is not given back: that of some groups of large batches."""

OWN_MAPPING_BYTES: Final = 4 * 1024 * 1024
"""Larger blocks are mapped for themselves, and given back when freed: histories, imports, commands of operators."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> None:
    """For this process and those that it forks. Other libraries than glibc know nothing of it, and need not."""
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None:
        option(_M_TRIM_THRESHOLD, KEPT_BYTES)
        option(_M_MMAP_THRESHOLD, OWN_MAPPING_BYTES)
