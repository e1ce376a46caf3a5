"""Requests that wait until the states of their partitions are loaded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from unisono.authority.group_size import GroupSize
from unisono.ipc.channel import Channel
from unisono.ipc.messages import Candidate, Submit


class ParkedRequests:
    """Parked requests in order of arrival.

    A request also waits behind a parked one of its connection, whatever partitions it needs (SUBMIT-09).
    """

    def __init__(self) -> None:
        self._parked: deque[tuple[Channel, Submit]] = deque()
        self._conns: set[int] = set()

    def __len__(self) -> int:
        return len(self._parked)

    def has_conn(self, conn: int) -> bool:
        return conn in self._conns

    def park(self, channel: Channel, submit: Submit) -> None:
        self._parked.append((channel, submit))
        self._conns.add(submit.conn)

    def take_all(self) -> list[tuple[Channel, Submit]]:
        """Remove and return all requests, in order."""
        requests = list(self._parked)
        self._parked.clear()
        self._conns.clear()
        return requests

    def oldest(self) -> Submit | None:
        return self._parked[0][1] if self._parked else None

    def take_ready(self, ready: Callable[[Submit], bool]) -> tuple[list[tuple[Channel, Submit]], GroupSize]:
        """Remove and return one group of ready requests; the others stay, in order."""
        parked, self._parked = self._parked, deque()
        self._conns = set()
        taken: list[tuple[Channel, Submit]] = []
        size = GroupSize()
        for channel, submit in parked:
            if size.admits(submit) and not self.has_conn(submit.conn) and ready(submit):
                taken.append((channel, submit))
                size.add(submit)
            else:
                self.park(channel, submit)
        return taken, size


def partitions_of(submit: Submit) -> set[str]:
    """The partitions whose states are needed to judge a request."""
    if len(submit.items) == 1 and isinstance(submit.items[0], Candidate):
        return set(submit.items[0].partitions)
    return {name for item in submit.items if isinstance(item, Candidate) for name in item.partitions}
