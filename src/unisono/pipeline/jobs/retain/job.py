"""Moving old events out of the hot log, into what the lake already holds (DUR-05).

An event goes when it is older than what is to be kept, when every one of its partitions has a snapshot in the store
at or past it, and when the lake's copy of it, in both tables, was compared with the log just now and its hash
computed anew. The log keeps a contiguous end of the history, so the first event that must stay keeps all after it.

Killed anywhere, nothing is lost: events leave in short transactions, oldest first, and the next run goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from unisono.display import megabytes
from unisono.lake.lake import Lake
from unisono.pipeline.clock import now_ms
from unisono.pipeline.compare import compare_rows
from unisono.pipeline.errors import Mismatch, PipelineError
from unisono.pipeline.jobs.audit.job import AuditOptions, audit
from unisono.pipeline.jobs.retain.snapshot_coverage import Coverage, LaggingSnapshot, cover
from unisono.pipeline.maintain.embedded import model_key
from unisono.pipeline.open_log import open_reader
from unisono.store.port import LogExtent

if TYPE_CHECKING:
    from pyspark import SparkContext

    from unisono.pipeline.maintain.embedded import LogMaintainer

KEEP_NEWEST: Final = 1_000
"""Events that never leave: what clients who were away for a moment ask for."""

_UNITS_MS: Final = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000}

Progress = Callable[[str], None]


class RetentionPolicy(msgspec.Struct, frozen=True):
    """What must stay: events younger than `age_ms`, the newest `events`; each where it is given."""

    age_ms: int | None = None
    events: int | None = None
    newest: int = KEEP_NEWEST


class RetentionBound(msgspec.Struct, frozen=True):
    """One reason why events after `upto` stay."""

    upto: int
    why: str


class RetentionPlan(msgspec.Struct, frozen=True):
    """What would go, and what keeps the rest.

    `bounds`: all that was looked at, the tightest first. `blockers`: partitions whose snapshots lag behind within
    what could go otherwise, those that block first in front; `blocked_partitions` counts all of them. `lake`: where
    the lake is.
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
        """Whether what has left before would be read from another lake from now on."""
        return self.extent.pruned_to > 0 and self.extent.archive != self.lake

    def text(self) -> str:
        held = self.extent
        lines = [f"{held_text(held)}, snapshots count for model version {self.model_version}"]
        if self.events:
            size = f"about {megabytes(self.bytes)} of event text"
            lines.append(f"can go: {self.events} events, {held.pruned_to + 1} to {self.upto}, {size}")
        else:
            lines.append("nothing can go")
        lines += [f"  up to {max(0, bound.upto)}: {bound.why}" for bound in self.bounds]
        if self.events and self.changes_archive:
            lines.append(f"what has left before is at {held.archive}: this lake is audited first")
        if self.blocked_partitions:
            lines.append(
                f"partitions that lack snapshots: {self.blocked_partitions} (`unisono lake snapshot --publish`)"
            )
            lines += [f"  {blocker.text()}" for blocker in self.blockers]
            if self.blocked_partitions > len(self.blockers):
                lines.append(f"  … and {self.blocked_partitions - len(self.blockers)} more")
        return "\n".join(lines)


class RetentionResult(msgspec.Struct, frozen=True):
    """What a run did."""

    plan: RetentionPlan
    events: int
    seconds: float


def plan(
    spark: SparkContext, store: str, maintainer: LogMaintainer, lake: Lake, keep: RetentionPolicy
) -> RetentionPlan:
    """What can go now; reads, and changes nothing."""
    if keep.age_ms is None and keep.events is None:
        raise PipelineError("say what to keep: an age, a number of events, or both")
    held = maintainer.extent()
    view = lake.view()
    version, digest = model_key(maintainer.model_in_force())
    bounds = _bounds(store, held, view.head, keep)
    target = min(bound.upto for bound in bounds)
    covered = Coverage()
    if target > held.pruned_to:
        covered = cover(spark, view, held.pruned_to, target, maintainer.watermarks(version, digest))
        if covered.first_blocked is not None:
            bounds.append(
                RetentionBound(covered.first_blocked - 1, "the next event's partitions lack snapshots")
            )
    upto = max(held.pruned_to, min(bound.upto for bound in bounds))
    return RetentionPlan(
        held,
        lake.storage.location,
        upto,
        version,
        sorted(bounds, key=lambda bound: bound.upto),
        covered.worst(),
        len(covered.blockers),
        covered.bytes_within(held.pruned_to, upto),
    )


def retain(
    spark: SparkContext,
    store: str,
    maintainer: LogMaintainer,
    lake: Lake,
    keep: RetentionPolicy,
    progress: Progress | None = None,
) -> RetentionResult:
    """Prove the lake's copy, then let go what `plan` allows; Mismatch, and nothing gone, when the copy is wrong."""
    began = time.monotonic()
    say = progress or (lambda _: None)
    allowed = plan(spark, store, maintainer, lake, keep)
    if not allowed.events:
        return RetentionResult(allowed, 0, time.monotonic() - began)
    if allowed.changes_archive:
        _require_sound(spark, store, lake, allowed, say)
    say(f"comparing {allowed.events} events with their copy in the lake")
    for part in compare_rows(spark, store, lake.view(), allowed.extent.pruned_to, allowed.upto):
        if part.problem:
            raise Mismatch(f"{part.problem}: nothing was removed from the log (see `unisono lake audit`)")
    maintainer.set_archive(lake.storage.location)
    gone = 0
    while step := maintainer.prune_step(allowed.upto):
        gone += step
        say(f"removed {gone} of {allowed.events} events from the log")
    maintainer.reclaim()
    return RetentionResult(allowed, gone, time.monotonic() - began)


def _require_sound(
    spark: SparkContext, store: str, lake: Lake, allowed: RetentionPlan, say: Progress
) -> None:
    """Another lake is to have what left before too, which cannot be compared with the log any more."""
    say(f"auditing the lake: what has left before was at {allowed.extent.archive}")
    report = audit(spark, lake, store, AuditOptions(sample=0))
    if not report.sound:
        raise Mismatch(
            f"the lake at {allowed.lake} is {report.verdict()}, and is to take the place of the one at "
            f"{allowed.extent.archive}: nothing was removed from the log (see `unisono lake audit`)"
        )


def held_text(held: LogExtent) -> str:
    """What the log holds, for a person."""
    if held.head > held.pruned_to:
        return f"the log holds events {held.pruned_to + 1} to {held.head}"
    return (
        f"the log holds no events, {held.pruned_to} have left it" if held.head else "the log holds no events"
    )


def _bounds(store: str, held: LogExtent, lake_head: int, keep: RetentionPolicy) -> list[RetentionBound]:
    bounds = [
        RetentionBound(lake_head, "the lake ends there (`unisono lake export`)"),
        RetentionBound(held.head - keep.newest, f"the newest {keep.newest} events always stay"),
    ]
    if keep.events is not None:
        bounds.append(RetentionBound(held.head - keep.events, f"{keep.events} events are to be kept"))
    if keep.age_ms is not None:
        now = now_ms()
        reader = open_reader(store)
        try:
            # What cannot leave for another reason is not looked at.
            upto = max(
                held.pruned_to, reader.last_before(now - keep.age_ms, now, min(b.upto for b in bounds))
            )
        finally:
            reader.close()
        bounds.append(RetentionBound(upto, f"events of the last {_span(keep.age_ms)} are to be kept"))
    return bounds


def _span(age_ms: int) -> str:
    """In the largest unit of which there is a whole one."""
    unit = next((unit for unit in _UNITS_MS if age_ms >= _UNITS_MS[unit]), "seconds")
    return f"{age_ms / _UNITS_MS[unit]:g} {unit}"
