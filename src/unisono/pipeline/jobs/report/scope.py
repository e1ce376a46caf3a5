"""What a report counts."""

from __future__ import annotations

from typing import Final

import msgspec

from unisono.lake.storage import Storage

EVER_MS: Final = 1 << 62


class ReportScope(msgspec.Struct, frozen=True):
    """Events committed within `[from_ms, to_ms)`, by steps of `step_ms`.

    `since` and `ages`: of the events after that committed id, how many are before each of these times.
    """

    storage: Storage
    head: int
    from_ms: int
    to_ms: int
    step_ms: int = 1
    within_ms: int = 0
    top: int = 0
    since: int = 0
    ages: tuple[int, ...] = ()
