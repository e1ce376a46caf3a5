"""Limits of a group: how many events and bytes one transaction takes, and how long it is judged."""

from __future__ import annotations

from typing import Final

from unisono.ipc.messages import Submit

GROUP_EVENTS_MAX: Final = 1000
"""Events of one transaction: a larger group no longer spreads the fsync noticeably."""

GROUP_BYTES_MAX: Final = 1024 * 1024
"""Event bytes of one transaction: what a group sends to one listener stays well below its send buffer."""

GROUP_S: Final = 0.1
"""Judging time after which a group takes no further request: all answers wait for the end of the group."""

REQUEST_S: Final = 1.0
"""Judging time after which the rest of a request moves to another group. A shared log cancels a group that takes too
long, and the same request would fail again and again."""


class GroupSize:
    """The size of a group. It takes whole requests; a single request may exceed the limits."""

    def __init__(self) -> None:
        self.events = 0
        self._bytes = 0

    def admits(self, submit: Submit) -> bool:
        if not self.events:
            return True
        return (
            self.events + len(submit.items) <= GROUP_EVENTS_MAX
            and self._bytes + submit.event_bytes <= GROUP_BYTES_MAX
        )

    def add(self, submit: Submit) -> None:
        self.events += len(submit.items)
        self._bytes += submit.event_bytes
