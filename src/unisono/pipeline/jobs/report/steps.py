"""The steps of time by which a report counts."""

from __future__ import annotations

from typing import Any, Final

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
WEEK_MS: Final = 7 * DAY_MS
MONDAY_MS: Final = 4 * DAY_MS
"""The first Monday of the epoch: weeks begin there."""

_STEPS: Final = ((3 * HOUR_MS, MINUTE_MS), (7 * DAY_MS, HOUR_MS), (730 * DAY_MS, DAY_MS))
"""(duration, step): ranges up to the duration use the step; enough steps for a shape, few enough to draw."""


def step_of(span_ms: int) -> int:
    """The step of a report on a range of this length."""
    return next((step for longest, step in _STEPS if span_ms <= longest), WEEK_MS)


def step_start(at: Any, step_ms: int) -> Any:
    """The start of the step that contains `at`, a time or an array of times."""
    return (at - MONDAY_MS) // step_ms * step_ms + MONDAY_MS


def steps_between(first_at: int, last_at: int, step_ms: int) -> range:
    return range(step_start(first_at, step_ms), step_start(last_at, step_ms) + 1, step_ms)
