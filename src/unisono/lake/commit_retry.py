"""Planning a commit again when another process commits to the same Delta table first.

Not for two loops that look alike: the lease (`pipeline/service/lease.py`) waits for its holder instead of giving up,
and `pipeline/jobs/erase/delete_files.py` repeats until nothing is found, whether or not a commit was refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from unisono.lake.errors import CommitConflict

T = TypeVar("T")

CONFLICTS_MAX: Final = 20
"""Each means that another process made progress; beyond this something else is wrong."""


def retry_on_conflict(attempt: Callable[[], T]) -> T:
    """Call `attempt`, which reads the table, plans from what is there and commits, until no conflict stops it.

    After CONFLICTS_MAX conflicts the next one is raised.
    """
    for _ in range(CONFLICTS_MAX):
        try:
            return attempt()
        except CommitConflict:
            continue
    return attempt()
