"""H11 and H12: the lake, snapshots, and the stores of clients, beside the log."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

from unisono.history.findings import InvariantCheck, listed
from unisono.history.known import KnownEvents
from unisono.history.records import Operation
from unisono.history.timeline import Timeline


def check_lake(timeline: Timeline, check: InvariantCheck) -> None:
    """H11."""
    final = timeline.final
    if final.lake_upto is not None:
        counts = Counter(event.committed_id for event in final.lake)
        twice = sorted(committed_id for committed_id, count in counts.items() if count > 1)
        check.expect(not twice, f"the lake has {listed(twice)} more than once", "the final read")
        beyond = sorted(committed_id for committed_id in counts if committed_id > final.lake_upto)
        check.expect(
            not beyond,
            f"the lake has {listed(beyond)}, above its own end {final.lake_upto}",
            "the final read",
        )
        due = {event.committed_id for event in final.log} | {seen.committed_id for seen in timeline.seen}
        missing = sorted(each for each in due if each <= final.lake_upto and each not in counts)
        check.expect(
            not missing, f"the lake lacks {listed(missing)} below its end {final.lake_upto}", "the final read"
        )
    for snapshot in timeline.snapshots:
        text = f"the snapshot of {snapshot.partition} at {snapshot.committed_id} differs from a replay"
        check.expect(snapshot.state == snapshot.replayed, text, "the final read")


def check_stores(timeline: Timeline, known: KnownEvents, check: InvariantCheck) -> None:
    """H12."""
    for client, cursors in timeline.cursors.items():
        for before, after in pairwise(cursors):
            text = f"the cursor of {client} goes back from {before.cursor} to {after.cursor}"
            check.expect(before.cursor <= after.cursor, text)
    _check_drafts(timeline, known, check)
    states: dict[tuple[frozenset[str], int], dict[str, str]] = defaultdict(dict)
    for store in timeline.stores:
        has = {committed_id for committed_id, _ in store.committed if committed_id <= store.cursor}
        due = set(known.between(store.partitions, 0, store.cursor, store.snapshot_starts))
        lacks, extra = sorted(due - has), sorted(has - due)
        check.expect(
            not lacks, f"the store of {store.client} lacks {listed(lacks)}, its cursor is {store.cursor}"
        )
        check.expect(
            not extra, f"the store of {store.client} has {listed(extra)}, which are not its partitions'"
        )
        both = sorted({id for _, id in store.committed}.intersection(store.drafts))
        check.expect(
            not both, f"the store of {store.client} has {', '.join(both[:5])} as draft and as committed"
        )
        done = sorted(
            id for id in store.drafts if id in known.by_id and known.by_id[id].committed_id <= store.cursor
        )
        ours = [id for id in done if set(known.by_id[id].partitions).intersection(store.partitions)]
        check.expect(not ours, f"the store of {store.client} still has {', '.join(ours[:5])} as drafts")
        if store.state is not None:
            states[frozenset(store.partitions), store.cursor][store.client] = store.state
    for (_, cursor), digests in states.items():
        text = f"the stores of {', '.join(sorted(digests))} have one cursor, {cursor}, and different states"
        check.expect(len(set(digests.values())) == 1, text)


def _check_drafts(timeline: Timeline, known: KnownEvents, check: InvariantCheck) -> None:
    """What a client with a store accepted is committed, rejected, or still a draft of it."""
    drafts: dict[str, set[str]] = defaultdict(set)
    for store in timeline.stores:
        drafts[store.client.partition("/")[0]].update(store.drafts)
    for located in timeline.operations:
        operation = located.record
        if isinstance(operation, Operation) and operation.phase == "invoked" and operation.client in drafts:
            id = operation.id
            there = id in known.by_id or id in timeline.rejections or id in drafts[operation.client]
            text = f"the draft {id} of {operation.client} is neither committed nor rejected, and no draft any more"
            check.expect(there, text, located.where)
