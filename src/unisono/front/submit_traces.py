"""The spans of a front: from a submit to its answer, and the delivery of a committed event."""

from __future__ import annotations

from collections import deque

import msgspec

from unisono.ipc.messages import Candidate, EventCommitted, Submit
from unisono.ipc.tracing import TraceIds, Tracer


class _Named(msgspec.Struct, frozen=True):
    id: str


_decode = msgspec.json.Decoder(_Named).decode


class SubmitTraces:
    """Requests of each connection in the order of their answers, with the events among them that are traced.

    Invariant: one entry for each unanswered submit of a connection that is open.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._unanswered: dict[int, deque[tuple[int, list[tuple[TraceIds, str]]]]] = {}

    def begin(self, submit: Submit) -> None:
        traced = [
            (ids, item.id)
            for item in submit.items
            if isinstance(item, Candidate) and (ids := self._tracer.chosen(item.id)) is not None
        ]
        self._unanswered.setdefault(submit.conn, deque()).append((self._tracer.now_ns(), traced))

    def answered(self, conn: int) -> None:
        """The oldest request of a connection; one of another front is not known here."""
        waiting = self._unanswered.get(conn)
        if not waiting:
            return
        began_ns, traced = waiting.popleft()
        now_ns = self._tracer.now_ns()
        for ids, event_id in traced:
            self._tracer.add(ids, "submit", began_ns, now_ns, **{"unisono.event_id": event_id})

    def forget(self, conn: int) -> None:
        self._unanswered.pop(conn, None)

    def now_ns(self) -> int:
        return self._tracer.now_ns()

    def delivered(self, committed: EventCommitted, began_ns: int, receivers: int) -> None:
        event_id = _decode(committed.payload).id
        ids = self._tracer.chosen(event_id)
        if ids is not None and receivers:
            known = {"unisono.committed_id": committed.committed_id, "unisono.receivers": receivers}
            self._tracer.add(ids, "deliver", began_ns, self._tracer.now_ns(), **known)

    def close(self) -> None:
        self._tracer.close()
