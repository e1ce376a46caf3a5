"""H6 to H9: what connections are sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from unisono.history.facts import SubscriptionChange, TimelineConnection
from unisono.history.findings import InvariantCheck, listed
from unisono.history.known import KnownEvents
from unisono.history.records import AccessScope, ConnectionOpened, ScopeChanged
from unisono.history.timeline import Timeline

EXPIRY_GRACE_S: Final = 1.0
"""After the end of a token, in which its connection must have ended."""

REVOKED_GRACE_S: Final = 1.0
"""After a change of access, in which what is no longer allowed must have ended (AUTHZ-09)."""


def check_pages(timeline: Timeline, known: KnownEvents, check: InvariantCheck) -> None:
    """H6."""
    for connection in timeline.connections.values():
        for page in connection.pages:
            upto = page.next_since
            expected = known.between(page.partitions, page.since, upto, page.snapshot_starts)
            missing = sorted(set(expected) - set(page.committed_ids))
            extra = sorted(set(page.committed_ids) - set(expected))
            where, name = page.where, page.connection
            check.expect(
                not missing, f"{name}: the page from {page.since} to {upto} lacks {listed(missing)}", where
            )
            check.expect(
                not extra, f"{name}: the page from {page.since} to {upto} has also {listed(extra)}", where
            )
            ascending = all(a < b for a, b in pairwise(page.committed_ids))
            check.expect(ascending, f"{name}: the page from {page.since} is not in ascending order", where)
            end = page.committed_ids[-1] if page.has_more and page.committed_ids else page.sync_to
            says = "the last event's, as more follow" if page.has_more else "the watermark"
            check.expect(upto == end, f"{name}: next_since_committed_id is {upto}, not {end}, {says}", where)


def check_broadcasts(timeline: Timeline, known: KnownEvents, check: InvariantCheck) -> None:
    """H7."""
    for name, connection in timeline.connections.items():
        if not connection.broadcasts:
            continue
        own = connection.sent_ids
        only_own = {id for id in own if all(item.connection == name for item in timeline.sent[id])}
        delivered = [each.committed_id for each in connection.broadcasts]
        for before, seen in pairwise(connection.broadcasts):
            text = f"{name}: the broadcast {seen.committed_id} comes after {before.committed_id}"
            check.expect(before.committed_id < seen.committed_id, text, seen.where)
        for seen in connection.broadcasts:
            check.expect(
                seen.id not in only_own,
                f"{name}: its own event {seen.committed_id} was broadcast to it",
                seen.where,
            )
        last = max(delivered)
        due: set[int] = set()
        doubtful: list[tuple[int, int]] = []
        for since, upto, change in _subscribed(connection, last):
            if change.certain:
                due.update(known.between(change.partitions, since, upto))
            else:
                doubtful.append((since, upto))
        missing = [each for each in sorted(due - set(delivered)) if known.by_committed_id[each].id not in own]
        text = f"{name}: no broadcast of {listed(missing)}, though later ones came"
        check.expect(not missing, text, connection.broadcasts[-1].where)
        for seen in connection.broadcasts:
            allowed = seen.committed_id in due or any(a < seen.committed_id <= b for a, b in doubtful)
            text = f"{name}: the broadcast {seen.committed_id} is of no partition subscribed to at that point"
            check.expect(allowed, text, seen.where)


def _subscribed(connection: TimelineConnection, last: int) -> list[tuple[int, int, SubscriptionChange]]:
    """Stretches of ids with the subscriptions in force, up to the last broadcast."""
    changes = connection.subscribed
    ends = [*(change.since for change in changes[1:]), last][: len(changes)]
    return [(change.since, min(end, last), change) for change, end in zip(changes, ends, strict=True)]


def check_access(timeline: Timeline, known: KnownEvents, check: InvariantCheck) -> None:
    """H8."""
    for seen in timeline.seen:
        connection = timeline.connections.get(seen.connection)
        if connection is None:
            continue
        opened = connection.opened
        changes = timeline.access.get(opened.client_id, ())
        scope, ended = _scope_at(changes, opened, seen.at)
        if changes:
            text = f"{seen.connection}: {seen.how} of {seen.committed_id} although its access was revoked"
            check.expect(not ended, text, seen.where)
        if scope is not None:
            event = known.by_committed_id.get(seen.committed_id)
            partitions = seen.partitions or (event.partitions if event is not None else ())
            allowed = scope.allows if seen.how == "result" else scope.reads
            verdicts = [allowed(partition) for partition in partitions]
            text = f"{seen.connection}: {seen.how} of {seen.committed_id} in {', '.join(partitions)}: out of scope"
            if partitions:
                check.expect(all(verdicts) if seen.how == "result" else any(verdicts), text, seen.where)
        if opened.expires_at is not None:
            late = seen.at - opened.expires_at
            text = f"{seen.connection}: {seen.how} of {seen.committed_id} {late:.1f} s after its token had expired"
            check.expect(late <= EXPIRY_GRACE_S, text, seen.where)


def _scope_at(
    changes: Sequence[ScopeChanged], opened: ConnectionOpened, at: float
) -> tuple[AccessScope | None, bool]:
    """The scope of a connection at a time, and whether it had ended, or should not have been accepted."""
    scope = opened.scope
    for change in sorted(changes, key=lambda change: change.at):
        if change.at + REVOKED_GRACE_S > at:
            break
        if change.scope is not None:
            scope = change.scope if opened.at <= change.at else scope
        elif opened.at <= change.at or (change.until is not None and opened.at < change.until):
            return scope, True
    return scope, False


def check_own_events(timeline: Timeline, known: KnownEvents, check: InvariantCheck) -> None:
    """H9."""
    acknowledged: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for seen in timeline.seen:
        connection = timeline.connections.get(seen.connection)
        if seen.how == "result" and connection is not None:
            acknowledged[connection.opened.client_id].append((seen.at, seen.committed_id))
    for name, connection in timeline.connections.items():
        pages = connection.pages
        if not pages:
            continue
        first = pages[0]
        cycle = [first]
        for page in pages[1:]:
            if page.first_of_cycle:
                break
            cycle.append(page)
        got = {committed_id for page in cycle for committed_id in page.committed_ids}
        owed = set(known.between(first.partitions, first.since, cycle[-1].next_since, first.snapshot_starts))
        missing = sorted(
            committed_id
            for at, committed_id in acknowledged[connection.opened.client_id]
            if at < first.requested_at and committed_id in owed and committed_id not in got
        )
        text = f"{name}: its first sync lacks its own acknowledged events {listed(missing)}"
        check.expect(not missing, text, first.where)
