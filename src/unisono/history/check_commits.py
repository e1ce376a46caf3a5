"""H1 to H5, H10, H13: ids, content, presence and order of what was committed."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from itertools import accumulate, pairwise
from math import inf

from unisono.history.facts import SeenEvent, SentRequest, TimelineConnection
from unisono.history.findings import InvariantCheck
from unisono.history.known import KnownEvents
from unisono.history.timeline import Timeline


def check_identity(timeline: Timeline, check: InvariantCheck) -> None:
    """H1."""
    committed_ids: dict[str, int] = {}
    ids: dict[int, str] = {}
    hashes: dict[str, str] = {}

    def one(committed_id: int, id: str, digest: str | None, where: str) -> None:
        before = committed_ids.setdefault(id, committed_id)
        check.expect(before == committed_id, f"the event {id} is {before} and also {committed_id}", where)
        other = ids.setdefault(committed_id, id)
        check.expect(other == id, f"{committed_id} is the event {other} and also {id}", where)
        if digest is not None:
            known = hashes.setdefault(id, digest)
            check.expect(known == digest, f"the event {id} ({committed_id}) has two contents", where)

    for event in timeline.final.events():
        one(event.committed_id, event.id, event.hash, "the final read")
    for seen in timeline.seen:
        one(seen.committed_id, seen.id, seen.hash, seen.where)
    for request in timeline.requests:
        for item, committed_id in zip(request.items, request.committed or (), strict=False):
            if committed_id is not None and not request.doubtful:
                one(committed_id, item.id, item.hash, request.where)


def check_presence(timeline: Timeline, check: InvariantCheck) -> None:
    """H2."""
    if not timeline.final.complete:
        return
    present = {event.committed_id for event in timeline.final.events()}
    first: dict[int, SeenEvent] = {}
    for seen in timeline.seen:
        first.setdefault(seen.committed_id, seen)
    for committed_id, seen in first.items():
        text = (
            f"the event {seen.id} ({committed_id}), seen on {seen.connection}, is in neither log nor archive"
        )
        check.expect(committed_id in present, text, seen.where)


def check_absence(timeline: Timeline, check: InvariantCheck) -> None:
    """H3."""
    if timeline.final.head is None:
        return
    acknowledged = {seen.id for seen in timeline.seen if seen.how == "result"}
    rows: dict[str, int] = defaultdict(int)
    for event in {event.committed_id: event for event in timeline.final.events()}.values():
        rows[event.id] += 1
        sent = timeline.sent.get(event.id, ())
        if not sent:
            if timeline.complete:
                check.expect(
                    False, f"the event {event.id} ({event.committed_id}) was never sent", "the final read"
                )
            continue
        rejected = len(sent) <= timeline.rejections.get(event.id, 0) and event.id not in acknowledged
        check.expect(
            not rejected,
            f"every submission of the event {event.id} was rejected, and it is in the log ({event.committed_id})",
            sent[-1].where,
        )
    for id, count in rows.items():
        check.expect(count == 1, f"the event {id} is in the log {count} times", "the final read")


def check_order(timeline: Timeline, known: KnownEvents, check: InvariantCheck) -> None:
    """H4. Where not every client was recorded, somebody else may have sent an id first, long before."""
    if not timeline.complete:
        return
    seen = sorted(timeline.seen, key=lambda each: each.at)
    starts = sorted(
        (items[0].at, id, items[0].where) for id, items in timeline.sent.items() if id in known.by_id
    )
    index = observed = 0
    for at, id, where in starts:
        while index < len(seen) and seen[index].at < at:
            observed = max(observed, seen[index].committed_id)
            index += 1
        committed_id = known.by_id[id].committed_id
        text = f"the event {id} got {committed_id}, but {observed} had been observed before it was first sent"
        check.expect(committed_id > observed, text, where)
    for request in timeline.requests:
        fresh = [
            committed_id
            for item, committed_id in zip(request.items, request.committed or (), strict=False)
            if committed_id is not None and timeline.sent[item.id][0].where == request.where
        ]
        text = f"the items of one request were committed as {fresh}, not in their order"
        check.expect(all(a < b for a, b in pairwise(fresh)), text, request.where)


def check_batches(timeline: Timeline, known: KnownEvents, check: InvariantCheck) -> None:
    """H13, of batches whose ids were sent in no other way. Where not every client was recorded, nobody knows that."""
    if not timeline.complete:
        return
    together: dict[tuple[str, ...], SentRequest] = {}
    apart: set[str] = set()
    for request in timeline.requests:
        ids = tuple(item.id for item in request.items)
        if not request.atomic:
            apart.update(ids)
        elif len(ids) > 1:
            together.setdefault(ids, request)
    shared = Counter(id for ids in together for id in ids)
    for ids, request in together.items():
        if any(id in apart or shared[id] > 1 for id in ids):
            continue
        found = [known.by_id[id].committed_id for id in ids if id in known.by_id]
        if timeline.final.complete:
            text = f"{len(found)} of the {len(ids)} events of an atomic batch were committed, as {found}"
            check.expect(len(found) in (0, len(ids)), text, request.where)
        if len(found) == len(ids):
            text = f"the events of an atomic batch were committed as {found}, which do not follow each other"
            check.expect(found == [*range(found[0], found[0] + len(found))], text, request.where)


def check_watermarks(timeline: Timeline, check: InvariantCheck) -> None:
    """H5."""
    pages = [page for each in timeline.connections.values() for page in each.pages if page.first_of_cycle]
    seen = sorted(timeline.seen, key=lambda each: each.at)
    index = acknowledged = 0
    for page in sorted(pages, key=lambda each: each.requested_at):
        while index < len(seen) and seen[index].at < page.requested_at:
            acknowledged = max(acknowledged, seen[index].committed_id)
            index += 1
        text = (
            f"{page.connection}: the watermark {page.sync_to} is below {acknowledged}, acknowledged before it"
        )
        check.expect(page.sync_to >= acknowledged, text, page.where)


def check_superseded(timeline: Timeline, check: InvariantCheck) -> None:
    """H10. Of two connections the later one is that whose connect was sent when the other was connected already."""
    by_client: dict[str, list[TimelineConnection]] = defaultdict(list)
    for connection in timeline.connections.values():
        if connection.connected_at is not None and connection.opened.client_id:
            by_client[connection.opened.client_id].append(connection)
    for group in by_client.values():
        newer = sorted((each.connect_sent_at or 0.0, each.connected_at or 0.0) for each in group)
        taken_over = [*accumulate((at for _, at in reversed(newer)), min)][::-1]
        for connection in group:
            place = bisect_right(newer, (connection.connected_at or 0.0, inf))
            if place == len(newer):
                continue
            name = connection.opened.connection
            text = f"{name}: a request sent after its client had been taken over was answered with success"
            for sent_at, _, where in connection.answered_at:
                check.expect(sent_at <= taken_over[place], text, where)
