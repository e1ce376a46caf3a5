"""Prunes old events from the log after proving that the lake has them (DUR-05).

An event is pruned when it is older than the retention policy, when each of its partitions has a snapshot in the store
at or past it, and when the lake's copy in both tables was just compared with the log and its hash recomputed. The log
keeps a contiguous end of the history, so the first event that must stay keeps all later ones.

Safe to kill anywhere: events are pruned in short transactions, oldest first, and the next run continues.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import msgspec

from unisono.display import megabytes
from unisono.lake.lake import Lake
from unisono.pipeline.clock import now_ms
from unisono.pipeline.compare import compare_rows
from unisono.pipeline.errors import Mismatch, PipelineError
from unisono.pipeline.jobs.audit.job import AuditOptions, audit
from unisono.pipeline.jobs.retain.snapshot_coverage import (
    Coverage,
    LaggingSnapshot,
    StoredSnapshots,
    measure_coverage,
)
from unisono.pipeline.maintain.embedded import model_key
from unisono.pipeline.open_log import open_reader
from unisono.pipeline.progress import Notify, silent
from unisono.store.port import LogExtent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from unisono.pipeline.maintain.embedded import LogMaintainer

KEEP_NEWEST: Final = 1_000
"""Events that are never pruned: clients that reconnect after a short time need them."""

_UNITS_MS: Final = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000}


class RetentionPolicy(msgspec.Struct, frozen=True):
    """Events that stay: those younger than `age_ms`, and the newest `events`."""

    age_ms: int | None = None
    events: int | None = None
    newest: int = KEEP_NEWEST


class RetentionBound(msgspec.Struct, frozen=True):
    """A reason why events after `upto` stay."""

    upto: int
    why: str


class RetentionPlan(msgspec.Struct, frozen=True):
    """The events that can be pruned, and the reasons why the others stay.

    `bounds`: all reasons, the tightest first. `blockers`: the partitions whose snapshots lag, those that block first
    in front; `blocked_partitions` counts all. `lake`: the lake's location.
    """

    extent: LogExtent
    lake: str
    upto: int
    model_version: int
    bounds: list[RetentionBound]
    blockers: list[LaggingSnapshot]
    blocked_partitions: int
    bytes: int = 0

    @property
    def events(self) -> int:
        return max(0, self.upto - self.extent.pruned_to)

    @property
    def changes_archive(self) -> bool:
        """Whether events pruned before would be read from another lake from now on."""
        return self.extent.pruned_to > 0 and self.extent.archive != self.lake

    def text(self) -> str:
        log = self.extent
        lines = [f"{extent_text(log)}, snapshots count for model version {self.model_version}"]
        if self.events:
            size = f"about {megabytes(self.bytes)} of event text"
            lines.append(f"can be pruned: {self.events} events, {log.pruned_to + 1} to {self.upto}, {size}")
        else:
            lines.append("nothing can be pruned")
        lines += [f"  up to {max(0, bound.upto)}: {bound.why}" for bound in self.bounds]
        if self.events and self.changes_archive:
            lines.append(f"events pruned before are at {log.archive}: this lake is audited first")
        if self.blocked_partitions:
            lines.append(
                f"partitions that lack snapshots: {self.blocked_partitions} (`unisono lake snapshot --publish`)"
            )
            lines += [f"  {blocker.text()}" for blocker in self.blockers]
            if self.blocked_partitions > len(self.blockers):
                lines.append(f"  … and {self.blocked_partitions - len(self.blockers)} more")
        return "\n".join(lines)


class RetentionResult(msgspec.Struct, frozen=True):
    """The plan, and the events pruned."""

    plan: RetentionPlan
    events: int
    seconds: float


def plan(
    spark: SparkSession, store: str, maintainer: LogMaintainer, lake: Lake, keep: RetentionPolicy
) -> RetentionPlan:
    """What can be pruned now; changes nothing."""
    if keep.age_ms is None and keep.events is None:
        raise PipelineError("no retention given: an age, a number of events, or both")
    log = maintainer.extent()
    view = lake.view()
    version, digest = model_key(maintainer.model_in_force())
    bounds = _bounds(store, log, view.head, keep)
    target = min(bound.upto for bound in bounds)
    covered = Coverage()
    if target > log.pruned_to:
        stored = StoredSnapshots(store, version, digest)
        covered = measure_coverage(spark, view, log.pruned_to, target, stored)
        if covered.first_blocked is not None:
            bounds.append(
                RetentionBound(
                    covered.first_blocked - 1, "partitions of the next event lack a current snapshot"
                )
            )
    upto = max(log.pruned_to, min(bound.upto for bound in bounds))
    return RetentionPlan(
        log,
        lake.storage.location,
        upto,
        version,
        sorted(bounds, key=lambda bound: bound.upto),
        covered.worst(),
        len(covered.blockers),
        covered.bytes_within(log.pruned_to, upto),
    )


def retain(
    spark: SparkSession,
    store: str,
    maintainer: LogMaintainer,
    lake: Lake,
    keep: RetentionPolicy,
    notify: Notify = silent,
) -> RetentionResult:
    """Prove the lake's copy, then prune what `plan` allows; Mismatch, and nothing pruned, when the copy differs."""
    began = time.monotonic()
    allowed = plan(spark, store, maintainer, lake, keep)
    if not allowed.events:
        return RetentionResult(allowed, 0, time.monotonic() - began)
    if allowed.changes_archive:
        _require_sound(spark, store, lake, allowed, notify)
    notify(f"comparing {allowed.events} events with their copy in the lake")
    for part in compare_rows(spark, store, lake.view(), allowed.extent.pruned_to, allowed.upto):
        if part.problem:
            raise Mismatch(f"{part.problem}: nothing was removed from the log (see `unisono lake audit`)")
    maintainer.set_archive(lake.storage.location)
    removed = 0
    while step := maintainer.prune_step(allowed.upto):
        removed += step
        notify(f"removed {removed} of {allowed.events} events from the log")
    maintainer.reclaim()
    return RetentionResult(allowed, removed, time.monotonic() - began)


def _require_sound(
    spark: SparkSession, store: str, lake: Lake, allowed: RetentionPlan, notify: Notify
) -> None:
    """Audit another lake before it replaces the current one: events pruned before can no longer be compared."""
    notify(f"auditing the lake: events pruned before are at {allowed.extent.archive}")
    report = audit(spark, lake, store, AuditOptions(sample=0))
    if not report.sound:
        raise Mismatch(
            f"the lake at {allowed.lake} is {report.verdict()}, and is to take the place of the one at "
            f"{allowed.extent.archive}: nothing was removed from the log (see `unisono lake audit`)"
        )


def extent_text(log: LogExtent) -> str:
    """The extent of the log, for people."""
    if log.head > log.pruned_to:
        return f"the log holds events {log.pruned_to + 1} to {log.head}"
    return f"the log has no events, {log.pruned_to} were pruned" if log.head else "the log holds no events"


def _bounds(store: str, log: LogExtent, lake_head: int, keep: RetentionPolicy) -> list[RetentionBound]:
    bounds = [
        RetentionBound(lake_head, "the lake ends there (`unisono lake export`)"),
        RetentionBound(log.head - keep.newest, f"the newest {keep.newest} events always stay"),
    ]
    if keep.events is not None:
        bounds.append(RetentionBound(log.head - keep.events, f"{keep.events} events are kept"))
    if keep.age_ms is not None:
        now = now_ms()
        reader = open_reader(store)
        try:
            # Events that stay for another reason are not read.
            upto = max(log.pruned_to, reader.last_before(now - keep.age_ms, now, min(b.upto for b in bounds)))
        finally:
            reader.close()
        bounds.append(RetentionBound(upto, f"events of the last {_duration_text(keep.age_ms)} are kept"))
    return bounds


def _duration_text(age_ms: int) -> str:
    """In the largest unit that fits at least once."""
    unit = next((unit for unit in _UNITS_MS if age_ms >= _UNITS_MS[unit]), "seconds")
    return f"{age_ms / _UNITS_MS[unit]:g} {unit}"
