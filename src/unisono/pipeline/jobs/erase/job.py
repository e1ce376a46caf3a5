"""Erases the content of events everywhere: a tombstone replaces the text, the rest of the event stays.

The steps, in this order:

1. record in the lake which events are erased and what the final search looks for; then record each event with the
time that all its tombstones carry; 2. export up to the last of these events. From then on no export can add any of
them, because a table only takes events after those it has; 3. rewrite the files of both tables that have them; a
compaction that read the old files then fails to commit; 4. drop the lake's snapshots of the affected partitions, and
fold them again where they are needed; 5. put tombstones into the log, which drops its snapshots of these partitions;
publish the new ones; 6. overwrite erased text in the log's files, and delete files of the lake that no table names
but that have erased events; 7. search everything for erased content.

Each step finds out what is left to do. A killed run is completed by the next one: the same command, or an erasure of
other events, which carries out both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from unisono.lake.errors import CommitConflict
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, LOG, SNAPSHOTS
from unisono.pipeline.clock import now_ms
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.job_model import ShippedModel, in_force
from unisono.pipeline.jobs.erase.certificate import ErasureCertificate, ErasureCounts, certify
from unisono.pipeline.jobs.erase.delete_files import clear_events, clear_states
from unisono.pipeline.jobs.erase.erasure_table import record, recorded
from unisono.pipeline.jobs.erase.fragments import PIECES_MAX, SALT_BYTES, Pieces
from unisono.pipeline.jobs.erase.proof import CleanStates, Proof, prove_erased
from unisono.pipeline.jobs.erase.rewrite import TombstoneTimes, rewrite
from unisono.pipeline.jobs.erase.select import (
    ByCommittedId,
    SelectedEvent,
    Selection,
    Selector,
    merge_selections,
    select,
)
from unisono.pipeline.jobs.erase.snapshots import drop_states, fold_again, folded_states
from unisono.pipeline.jobs.erase.unproved import (
    UnprovedErasure,
    clear_unproved,
    hashed_names,
    load_unproved,
    save_unproved,
)
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.export.job import plan as plan_export
from unisono.pipeline.jobs.snapshot.job import folded_to
from unisono.pipeline.maintain.embedded import LogMaintainer, open_maintainer
from unisono.pipeline.open_log import extent
from unisono.pipeline.progress import Notify, silent
from unisono.protocol.tombstones import tombstone
from unisono.store.maintenance import ERASE_EVENTS_MAX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class NothingFound(PipelineError):
    """No event matches the selection."""


class ErasePlan(msgspec.Struct, frozen=True):
    """What would be erased, of all events up to `head`.

    `unfinished`: events of an earlier erasure that is not proved yet; this one finishes it. `model`: folds new
    snapshots; None where none are needed.
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
                f"an earlier erasure of {len(self.unfinished.events)} events is not finished: "
                "this one finishes it\n"
            )
        return before + (
            f"{self.selector.text()}: events {ids[0]} to {ids[-1]} of {self.head}, {len(ids)} in all, "
            f"not erased yet: {self.intact}\n"
            f"  in the log: {hot}, in the lake: {archived}\n"
            f"  partitions concerned: {len(partitions)} ({shown})"
        )


class EraseSummary(msgspec.Struct, frozen=True):
    """The counts of a run, and the result of its final search."""

    events: int
    intact: int
    lake_rows: int
    log_events: int
    partitions: int
    files_removed: int
    seconds: float
    proof: Proof
    certificate: ErasureCertificate


def plan(spark: SparkSession, store: str, lake: Lake, selector: Selector) -> ErasePlan:
    """Select the events, and check that they can be erased; changes nothing."""
    plan_export(store, lake)  # refuses a lake of another log
    log_extent, view = extent(store), lake.view()
    begun = load_unproved(lake.storage)
    salt = os.urandom(SALT_BYTES) if begun is None else begun.salt
    selection = select(spark, store, view, selector, log_extent.pruned_to, log_extent.head, salt)
    if selector.kind == "user" and not selection.events and begun is not None and begun.is_of(selector):
        # Authors are erased with the text, so the events of an interrupted erasure are found by their ids.
        rest = ByCommittedId(begun.ids or ())
        selection = select(spark, store, view, rest, log_extent.pruned_to, log_extent.head, salt)
    _require_found(selector, selection)
    unfinished = None
    if begun is not None:
        chosen = {event.committed_id for event in selection.events}
        left = sorted(set(recorded(lake) if begun.ids is None else begun.ids) - chosen)
        unfinished = select(
            spark, store, view, ByCommittedId(tuple(left)), log_extent.pruned_to, log_extent.head, salt
        )
    model = None
    if log_extent.pruned_to or lake.find(SNAPSHOTS) is not None:
        model = in_force(store)
        folded_to(lake, model)  # refuses snapshots of another content of the same model version
    return ErasePlan(selector, selection, log_extent.pruned_to, log_extent.head, view.head, model, unfinished)


def _require_found(selector: Selector, selection: Selection) -> None:
    if selector.kind == "id":
        found = {event.id for event in selection.events}
        missing = [name for name in selector.names if name not in found]
        if missing:
            raise NothingFound(f"no event has the id {missing[0]!r}: nothing was erased")
    elif not selection.events:
        raise NothingFound(f"no events of {selector.text()}: nothing was erased")


def erase(
    spark: SparkSession,
    store: str,
    lake: Lake,
    planned: ErasePlan,
    *,
    reason: str | None = None,
    notify: Notify = silent,
    also: Sequence[Path] = (),
) -> EraseSummary:
    """Carry out a plan, and what an earlier one left undone. `also`: further directories to search."""
    began, began_at = time.monotonic(), now_ms()
    selection, tokens, times = _begin(lake, planned, reason)
    erased, names = TombstoneTimes.of(times), selection.partitions
    notify(f"events recorded as to be erased: {len(times)}")
    export(spark, store, lake, to=max(int(erased.ids[-1]), lake.head()))
    rows = sum(rewrite(spark, lake, table, erased, names) for table in (BY_PARTITION, LOG))
    notify(f"rows erased in the lake: {rows}")
    # Opened before folding: after another erasure the store refuses these states.
    with closing(open_maintainer(store)) as maintainer:
        folded_ms = _refold(spark, lake, planned.model, sorted(names))
        hot = sum(_erase_in_log(maintainer, lake, planned.model, selection.events, times))
        maintainer.reclaim()
    notify(f"events erased in the log: {hot}")
    removed, found = clear_events(spark, lake, erased, names, selection.salt)
    removed += clear_states(spark, lake, names, folded_ms)
    notify(f"files deleted that had erased events: {removed}")
    pieces = Pieces(sorted(tokens | found)[:PIECES_MAX], selection.salt)
    proof = prove_erased(spark, store, lake, erased, pieces, CleanStates(frozenset(names), folded_ms), also)
    if proof.holds:
        clear_unproved(lake.storage)
    certificate = certify(
        store,
        lake.storage.location,
        planned.selector.kind,
        reason,
        (began_at, now_ms()),
        selection.events,
        times,
        ErasureCounts(planned.intact, len(names), rows, hot, removed),
        proof,
    )
    seconds = time.monotonic() - began
    return EraseSummary(
        planned.events, planned.intact, rows, hot, len(names), removed, seconds, proof, certificate
    )


def _begin(
    lake: Lake, planned: ErasePlan, reason: str | None
) -> tuple[Selection, frozenset[bytes], Mapping[int, int]]:
    """Record the erasure, together with unproved earlier ones; returns all events, tokens and times."""
    own, before = planned.selection, planned.unfinished
    begun = load_unproved(lake.storage)
    if (begun is None) != (before is None) or (begun is not None and begun.salt != own.salt):
        raise CommitConflict("another erasure began or ended at the same time: run this again")
    times: dict[int, int] = {}
    tokens = own.pieces
    if begun is not None and before is not None:
        times.update(record(lake, before.events, now_ms(), begun.selected_by, begun.reason))
        tokens |= begun.tokens | before.pieces
    whole = merge_selections([own] if before is None else [before, own], own.salt)
    tokens = frozenset(sorted(tokens)[:PIECES_MAX])
    ids = tuple(event.committed_id for event in whole.events)
    names: frozenset[bytes] | None = hashed_names(planned.selector, own.salt)
    if begun is not None:
        names = None if begun.names is None else begun.names | hashed_names(planned.selector, own.salt)
    fresh = UnprovedErasure(own.salt, tokens, ids, planned.selector.kind, reason, names)
    if fresh != begun:
        save_unproved(lake.storage, fresh)
    times.update(record(lake, own.events, now_ms(), planned.selector.kind, reason))
    return whole, tokens, times


def _refold(spark: SparkSession, lake: Lake, model: ShippedModel | None, names: Sequence[str]) -> int:
    """Replace the snapshots; returns the time, in milliseconds, since when a snapshot is clean."""
    before = drop_states(spark, lake, names, model)
    folded_ms = now_ms()
    if model is not None:
        fold_again(spark, lake, model, names, before)
    return folded_ms


def _erase_in_log(
    maintainer: LogMaintainer,
    lake: Lake,
    model: ShippedModel | None,
    events: Sequence[SelectedEvent],
    times: Mapping[int, int],
) -> Iterator[int]:
    """Erase events in batches, each followed by new snapshots, which a pruned log needs."""
    # By partition, so that the snapshots of a batch are next to each other in the lake's files.
    ordered = sorted(events, key=lambda event: (event.partitions[0].encode(), event.committed_id))
    everything = sorted({name for event in events for name in event.partitions})
    with ExitStack() as stack:
        states = None
        if model is not None:
            states = stack.enter_context(folded_states(lake, model.version, everything))
        for start in range(0, len(ordered), ERASE_EVENTS_MAX):
            some = ordered[start : start + ERASE_EVENTS_MAX]
            names = sorted({name for event in some for name in event.partitions})
            yield maintainer.erase(
                [(event.committed_id, tombstone(times[event.committed_id])) for event in some], names
            )
            for snapshots in () if states is None else states(names):
                maintainer.put_snapshots(snapshots)
