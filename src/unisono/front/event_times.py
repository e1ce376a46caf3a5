"""When the events of the last moments were submitted to this front and delivered by it, while an operator looks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from unisono.ipc.messages import EventCommitted

WATCH_S: Final = 10.0
"""After this long without a question nothing is noted any more. The console asks each second."""

RANGES_KEPT: Final = 2_000
RANGES_TOLD: Final = 500


class EventTimes(msgspec.Struct, array_like=True):
    """Events of one request, by the range of their ids.

    `submitted_s`: when the front had accepted the request, None for one of another front or node. `delivered_s`: when
    the last of them was written for its subscribers; `receivers`: to how many, of all events together. Seconds of the
    machine's monotonic clock.
    """

    first: int
    last: int
    submitted_s: float | None
    delivered_s: float
    receivers: int


class EventWatch:
    """Notes times, a few tenths of a microsecond for each event.

    Invariant: the entries of a connection are those of its unanswered requests, in order, since it was first seen.
    """

    def __init__(self, now: Callable[[], float], unanswered: Mapping[int, int]) -> None:
        """`unanswered`: how many requests of each connection were sent before, whose times are not known."""
        self._now = now
        self._requests: dict[int, deque[float | None]] = {
            conn: deque([None] * waiting) for conn, waiting in unanswered.items()
        }
        self._answered: float | None = None
        self._ranges: deque[EventTimes] = deque(maxlen=RANGES_KEPT)
        self._open: EventTimes | None = None
        self._origin = 0

    def begin(self, conn: int) -> None:
        self._requests.setdefault(conn, deque()).append(self._now())

    def answered(self, conn: int) -> None:
        """The oldest request of a connection; one of another front is not known here."""
        requests = self._requests.get(conn)
        if requests is None:
            self._answered = None
            return
        self._answered = requests.popleft()
        if not requests:
            del self._requests[conn]

    def forget_all(self) -> None:
        """No request is answered any more."""
        self._requests.clear()

    def published(self, committed: EventCommitted, receivers: int) -> None:
        """A single event is published after its answer, those of a batch before theirs."""
        origin = committed.origin
        if committed.answers:
            submitted = self._answered
        else:
            requests = self._requests.get(origin)
            submitted = requests[0] if requests else None
        if not receivers and submitted is None:
            return
        entry = self._open
        if (
            entry is not None
            and entry.last + 1 == committed.committed_id
            and self._origin == origin
            and entry.submitted_s == submitted
        ):
            entry.last = committed.committed_id
            entry.delivered_s = self._now()
            entry.receivers += receivers
            return
        id = committed.committed_id
        self._open = EventTimes(id, id, submitted, self._now(), receivers)
        self._origin = origin
        self._ranges.append(self._open)

    def since(self, after: int) -> list[EventTimes]:
        """The newest ranges with an event after this id, oldest first."""
        found: list[EventTimes] = []
        for entry in reversed(self._ranges):
            if entry.last <= after or len(found) == RANGES_TOLD:
                break
            found.append(entry)
        return found[::-1]
