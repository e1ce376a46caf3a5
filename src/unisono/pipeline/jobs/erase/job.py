"""Erasing what events said, everywhere: a tombstone takes the place of the text, all else of the event stays.

The steps, in this order:

1. what is to be erased is written down in the lake, and what to look for in the end; then it is recorded with the
   time that all its tombstones carry;
2. the lake is brought up to the last of these events. From then on no export can add any of them: a table takes
   events only after those it has;
3. both tables are written anew where they hold them; a compaction that had read the old files is refused by that;
4. the lake's snapshots of the partitions concerned go, and are folded anew where they are needed;
5. the log gets its tombstones and lets go of its snapshots of these partitions; those folded anew take their place;
6. the log's files are wiped, and files of the lake that no table names but that still hold erased events are deleted;
7. everything is searched for what was erased.

Every step finds out by itself what is left to do. A run that was killed anywhere is completed by the next one: the
same command, or an erasure of anything else, which carries out both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from unisono.lake.errors import CommitConflict
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, LOG, SNAPSHOTS
from unisono.pipeline.clock import now_ms
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.job_model import ShippedModel, in_force
from unisono.pipeline.jobs.erase.delete_files import clear_events, clear_states
from unisono.pipeline.jobs.erase.erasure_table import record, recorded
from unisono.pipeline.jobs.erase.fragments import PIECES_MAX, SALT_BYTES, Pieces
from unisono.pipeline.jobs.erase.proof import CleanStates, Proof, prove
from unisono.pipeline.jobs.erase.rewrite import TombstoneTimes, rewrite
from unisono.pipeline.jobs.erase.select import ByCommittedId, Chosen, Selection, Selector, joined, select
from unisono.pipeline.jobs.erase.snapshots import fold_again, forget_states, states_of
from unisono.pipeline.jobs.erase.unproved import UnprovedErasure, forget, keep, unproved
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.export.job import plan as plan_export
from unisono.pipeline.jobs.snapshot.job import reached
from unisono.pipeline.maintain.embedded import LogMaintainer, open_maintainer
from unisono.pipeline.open_log import extent
from unisono.protocol.tombstones import tombstone
from unisono.store.maintenance import ERASE_EVENTS_MAX

if TYPE_CHECKING:
    from pyspark import SparkContext

Progress = Callable[[str], None]


class NothingFound(PipelineError):
    """No event is what was asked for."""


class ErasePlan(msgspec.Struct, frozen=True):
    """What would be erased, of everything that was committed up to `head`.

    `unfinished`: what else an earlier erasure was begun of and not proved to be gone; it is finished with this one.
    `model`: what snapshots are folded with anew, None where none are needed.
    """

    selector: Selector
    selection: Selection
    pruned_to: int
    head: int
    lake_head: int
    model: ShippedModel | None
    unfinished: Selection | None = None

    @property
    def events(self) -> int:
        return len(self.selection.events)

    @property
    def intact(self) -> int:
        return sum(event.intact for event in self.selection.events)

    def text(self) -> str:
        ids = [event.committed_id for event in self.selection.events]
        hot, archived = sum(id > self.pruned_to for id in ids), sum(id <= self.lake_head for id in ids)
        partitions = sorted(self.selection.partitions)
        shown = ", ".join(map(repr, partitions[:5])) + (", …" if len(partitions) > 5 else "")
        before = ""
        if self.unfinished is not None and self.unfinished.events:
            before = (
                f"an earlier erasure of {len(self.unfinished.events)} events was begun and not finished: "
                "it is finished with this one\n"
            )
        return before + (
            f"{self.selector.text()}: events {ids[0]} to {ids[-1]} of {self.head}, {len(ids)} in all, "
            f"not erased yet: {self.intact}\n"
            f"  in the log: {hot}, in the lake: {archived}\n"
            f"  partitions concerned: {len(partitions)} ({shown})"
        )


class EraseSummary(msgspec.Struct, frozen=True):
    """What a run did, and what the search at its end found."""

    events: int
    intact: int
    lake_rows: int
    log_events: int
    partitions: int
    files_removed: int
    seconds: float
    proof: Proof


def plan(spark: SparkContext, store: str, lake: Lake, selector: Selector) -> ErasePlan:
    """What is meant, and whether it can be done; reads, and changes nothing."""
    plan_export(store, lake)  # refuses a lake of another log
    held, view = extent(store), lake.view()
    begun = unproved(lake.storage)
    salt = os.urandom(SALT_BYTES) if begun is None else begun.salt
    selection = select(spark, store, view, selector, held.pruned_to, held.head, salt)
    _require_found(selector, selection)
    unfinished = None
    if begun is not None:
        chosen = {event.committed_id for event in selection.events}
        left = sorted(set(recorded(lake) if begun.ids is None else begun.ids) - chosen)
        unfinished = select(spark, store, view, ByCommittedId(tuple(left)), held.pruned_to, held.head, salt)
    model = None
    if held.pruned_to or lake.find(SNAPSHOTS) is not None:
        model = in_force(store)
        reached(lake, model)  # refuses snapshots of another content of the same model version
    return ErasePlan(selector, selection, held.pruned_to, held.head, view.head, model, unfinished)


def _require_found(selector: Selector, selection: Selection) -> None:
    if selector.kind == "id":
        found = {event.id for event in selection.events}
        missing = [name for name in selector.names if name not in found]
        if missing:
            raise NothingFound(f"no event has the id {missing[0]!r}: nothing was erased")
    elif not selection.events:
        raise NothingFound(f"no event is of {selector.text()}: nothing was erased")


def erase(
    spark: SparkContext,
    store: str,
    lake: Lake,
    planned: ErasePlan,
    *,
    reason: str | None = None,
    progress: Progress | None = None,
    also: Sequence[Path] = (),
) -> EraseSummary:
    """Carry out a plan, and what an earlier one left to do. `also`: further directories to search in the end."""
    began, say = time.monotonic(), progress or (lambda _: None)
    selection, tokens, times = _begin(lake, planned, reason)
    erased, names = TombstoneTimes.of(times), selection.partitions
    say(f"events recorded as to be erased: {len(times)}")
    export(spark, store, lake, to=max(int(erased.ids[-1]), lake.head()))
    rows = sum(rewrite(spark, lake, table, erased, names) for table in (BY_PARTITION, LOG))
    say(f"rows erased in the lake: {rows}")
    # Opened before folding: should others erase something meanwhile, these states will not be taken.
    with closing(open_maintainer(store)) as maintainer:
        folded_ms = _forget_and_fold(spark, lake, planned.model, sorted(names))
        hot = sum(_erase_in_log(maintainer, lake, planned.model, selection.events, times))
        maintainer.reclaim()
    say(f"events erased in the log: {hot}")
    removed, found = clear_events(spark, lake, erased, names, selection.salt)
    removed += clear_states(spark, lake, names, folded_ms)
    say(f"files deleted that held erased events: {removed}")
    pieces = Pieces(sorted(tokens | found)[:PIECES_MAX], selection.salt)
    proof = prove(spark, store, lake, erased, pieces, CleanStates(frozenset(names), folded_ms), also)
    if proof.holds:
        forget(lake.storage)
    return EraseSummary(
        planned.events, planned.intact, rows, hot, len(names), removed, time.monotonic() - began, proof
    )


def _begin(
    lake: Lake, planned: ErasePlan, reason: str | None
) -> tuple[Selection, frozenset[bytes], Mapping[int, int]]:
    """Write everything down, with what earlier runs did not prove to be gone: all events, all tokens, all times."""
    own, before = planned.selection, planned.unfinished
    begun = unproved(lake.storage)
    if (begun is None) != (before is None) or (begun is not None and begun.salt != own.salt):
        raise CommitConflict("another erasure was begun or finished meanwhile: run this again")
    times: dict[int, int] = {}
    tokens = own.pieces
    if begun is not None and before is not None:
        times.update(record(lake, before.events, now_ms(), begun.selected_by, begun.reason))
        tokens |= begun.tokens | before.pieces
    whole = joined([own] if before is None else [before, own], own.salt)
    tokens = frozenset(sorted(tokens)[:PIECES_MAX])
    ids = tuple(event.committed_id for event in whole.events)
    fresh = UnprovedErasure(own.salt, tokens, ids, planned.selector.kind, reason)
    if fresh != begun:
        keep(lake.storage, fresh)
    times.update(record(lake, own.events, now_ms(), planned.selector.kind, reason))
    return whole, tokens, times


def _forget_and_fold(
    spark: SparkContext, lake: Lake, model: ShippedModel | None, names: Sequence[str]
) -> int:
    """New snapshots in the place of old ones; since when a snapshot can be trusted, in milliseconds."""
    before = 0 if model is None else reached(lake, model)
    forget_states(lake, names)
    folded_ms = now_ms()
    if model is not None:
        fold_again(spark, lake, model, names, before)
    return folded_ms


def _erase_in_log(
    maintainer: LogMaintainer,
    lake: Lake,
    model: ShippedModel | None,
    events: Sequence[Chosen],
    times: Mapping[int, int],
) -> Iterator[int]:
    """Some events at a time; each time new snapshots follow at once, on which a log rests that has lost events."""
    for start in range(0, len(events), ERASE_EVENTS_MAX):
        some = events[start : start + ERASE_EVENTS_MAX]
        names = sorted({name for event in some for name in event.partitions})
        yield maintainer.erase(
            [(event.committed_id, tombstone(times[event.committed_id])) for event in some], names
        )
        if model is not None:
            for snapshots in states_of(lake, model.version, names):
                maintainer.put_snapshots(snapshots)
