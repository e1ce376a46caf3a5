"""Requests that wait for a partition's state, and the bounds of a group."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from unisono.ipc.channel import Channel
from unisono.ipc.messages import Candidate, Submit

GROUP_EVENTS_MAX: Final = 1000
"""Events of one transaction: past this a larger group no longer spreads the fsync noticeably."""

GROUP_BYTES_MAX: Final = 1024 * 1024
"""Event bytes of one transaction: what a group says to one listener stays well below its send buffer."""

GROUP_S: Final = 0.1
"""Judging time after which a group takes no further request: others wait for its end to hear anything."""

REQUEST_S: Final = 1.0
"""Judging time after which a request goes on in another group. A shared log ends a group that takes too long, and the
same request would come again and again."""


class GroupSize:
    """How much a group holds; it takes whole requests, and one that alone is larger than the bounds."""

    def __init__(self) -> None:
        self.events = 0
        self._bytes = 0

    def admits(self, submit: Submit) -> bool:
        if not self.events:
            return True
        return (
            self.events + len(submit.items) <= GROUP_EVENTS_MAX
            and self._bytes + _event_bytes(submit) <= GROUP_BYTES_MAX
        )

    def add(self, submit: Submit) -> None:
        self.events += len(submit.items)
        self._bytes += _event_bytes(submit)


class ParkedRequests:
    """Requests in the order they came, and whose they are.

    A request also waits behind another of its connection, whatever it needs itself (SUBMIT-09).
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Channel, Submit]] = deque()
        self._conns: set[int] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def holds(self, conn: int) -> bool:
        return conn in self._conns

    def enter(self, channel: Channel, submit: Submit) -> None:
        self._waiting.append((channel, submit))
        self._conns.add(submit.conn)

    def leave(self) -> list[tuple[Channel, Submit]]:
        """Everybody, in order; nobody waits afterwards."""
        everybody = list(self._waiting)
        self._waiting.clear()
        self._conns.clear()
        return everybody

    def longest_waiting(self) -> Submit | None:
        return self._waiting[0][1] if self._waiting else None

    def release(self, ready: Callable[[Submit], bool]) -> tuple[list[tuple[Channel, Submit]], GroupSize]:
        """A group of those who need not wait any more; the others stay, in their order."""
        waiting, self._waiting = self._waiting, deque()
        self._conns = set()
        free: list[tuple[Channel, Submit]] = []
        size = GroupSize()
        for channel, submit in waiting:
            if size.admits(submit) and not self.holds(submit.conn) and ready(submit):
                free.append((channel, submit))
                size.add(submit)
            else:
                self.enter(channel, submit)
        return free, size


def needed(submit: Submit) -> set[str]:
    """The partitions whose states a request is judged on."""
    return {name for item in submit.items if isinstance(item, Candidate) for name in item.partitions}


def _event_bytes(submit: Submit) -> int:
    return sum(len(item.event) for item in submit.items if isinstance(item, Candidate))
