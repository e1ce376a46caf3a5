"""Every invariant applied to a history."""

from __future__ import annotations

from collections.abc import Iterable

from unisono.history.check_commits import (
    check_absence,
    check_batches,
    check_identity,
    check_order,
    check_presence,
    check_superseded,
    check_watermarks,
)
from unisono.history.check_copies import check_lake, check_stores
from unisono.history.check_delivery import check_access, check_broadcasts, check_own_events, check_pages
from unisono.history.findings import INVARIANTS, InvariantCheck, Verdict
from unisono.history.known import KnownEvents
from unisono.history.records import HistoryEvent, HistoryUnreadable, Located
from unisono.history.timeline import Timeline, build


def check_history(records: Iterable[Located], *, same_past: bool = False) -> Verdict:
    """Check a history; HistoryUnreadable when it is of several logs, where nothing could be concluded.

    `same_past`: epochs of one log are one history, as after a failover that must not lose anything.
    """
    timeline = build(records)
    logs = {log_id for log_id, _ in timeline.logs} if same_past else timeline.logs
    if len(logs) > 1:
        raise HistoryUnreadable("the history is of several logs, or epochs of a log: check each by itself")
    known = _known(timeline)
    checks = {invariant: InvariantCheck(invariant) for invariant in INVARIANTS}
    check_identity(timeline, checks["H1"])
    check_presence(timeline, checks["H2"])
    check_absence(timeline, checks["H3"])
    check_order(timeline, known, checks["H4"])
    check_watermarks(timeline, checks["H5"])
    check_pages(timeline, known, checks["H6"])
    check_broadcasts(timeline, known, checks["H7"])
    check_access(timeline, known, checks["H8"])
    check_own_events(timeline, known, checks["H9"])
    check_superseded(timeline, checks["H10"])
    check_lake(timeline, checks["H11"])
    check_stores(timeline, known, checks["H12"])
    check_batches(timeline, known, checks["H13"])
    return Verdict(tuple(checks.values()))


def _known(timeline: Timeline) -> KnownEvents:
    """The events of the final read, then what anyone saw: an event that is missing in storage still has its place."""
    sent = {id: item.partitions for id, items in timeline.sent.items() for item in items if item.partitions}
    seen = (
        HistoryEvent(each.committed_id, each.id, each.partitions or sent.get(each.id) or (), each.hash)
        for each in sorted(timeline.seen, key=lambda each: each.partitions is None)
    )
    return KnownEvents([*timeline.final.events(), *seen])
