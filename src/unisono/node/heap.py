"""Large buffers come from the heap of a process and stay in it for the next ones.

The C library asks the operating system for each buffer of some hundred KiB and gives it back when it is freed. Each
page of memory of the next one is then mapped and cleared again, which costs several times what filling it does. One
page of history passes through a few such buffers on its way to a client.
"""

from __future__ import annotations

import ctypes
from typing import Final

OWN_MAPPING_BYTES: Final = 4 * 1024 * 1024
"""Buffers from this size on are mapped on their own. Pages of history, groups and batches are smaller."""

FREE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Free bytes at the end of the heap that a process keeps: the buffers of several pages under way at once."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3

_mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it; other libraries do not need it


def keep_large_buffers() -> None:
    """For the rest of this process."""
    if _mallopt is not None:
        _mallopt(_M_MMAP_THRESHOLD, OWN_MAPPING_BYTES)
        _mallopt(_M_TRIM_THRESHOLD, FREE_BYTES_MAX)
