"""Checks that the files of `log` form one history: every id from 1 to the head, once, in order."""

from __future__ import annotations

from collections.abc import Sequence

from unisono.lake.file_checks import has_own_name
from unisono.lake.storage import LOG
from unisono.lake.write import DataFile
from unisono.pipeline.jobs.audit.findings import KEPT_MAX, FindingTally
from unisono.pipeline.jobs.audit.tasks import AuditOutcome, FileContent, Scope
from unisono.store.port import CLOCK_SKEW_MAX_MS


def check_continuity(scope: Scope, outcome: AuditOutcome, files: Sequence[DataFile]) -> None:
    """Checks across files: gaps, overlaps, and times that go back from one file to the next."""
    hidden = [(part.first_id, part.last_id) for part in outcome.unreadable if part.file.table == LOG]
    stretches = sorted(stretch for one in outcome.extents for stretch in one.stretches)
    _check_overlaps(stretches, outcome.tally)
    _check_gaps(sorted([*stretches, *hidden]), scope.head, outcome.tally)
    foreign = {file.path for file in files if not has_own_name(file)}
    _check_files([one for one in outcome.extents if one.stretches and one.path not in foreign], outcome.tally)
    if not any(file.table == LOG for file in files) and scope.head:
        outcome.tally.add("head", f"the table log ends at {scope.head} and has no files")


def _check_overlaps(stretches: Sequence[tuple[int, int]], tally: FindingTally) -> None:
    reached = 0
    for first, last in stretches:
        for id in range(first, min(first + KEPT_MAX, min(last, reached) + 1)):
            tally.add("duplicate", "it is in more than one file", id)
        tally.count("duplicate", range(first + KEPT_MAX, min(last, reached) + 1))
        reached = max(reached, last)


def _check_gaps(stretches: Sequence[tuple[int, int]], head: int, tally: FindingTally) -> None:
    reached = 0
    within = [(first, min(last, head)) for first, last in stretches if first <= head]
    for first, last in [*within, (head + 1, head + 1)]:
        if first > reached + 2:
            tally.add("gap", f"it and all events up to {first - 1} are missing", reached + 1)
        elif first == reached + 2:
            tally.add("gap", "it is missing", reached + 1)
        reached = max(reached, last)


def _check_files(extents: Sequence[FileContent], tally: FindingTally) -> None:
    """Readers take files in order of their first id and rely on ascending ids."""
    before: FileContent | None = None
    for extent in sorted(extents, key=lambda one: one.stretches[0]):
        first = extent.stretches[0][0]
        if before is not None:
            if first <= before.stretches[-1][1]:
                tally.add("order", f"{extent.path} begins before {before.path} ends", first)
            elif 0 < before.last_time - extent.first_time <= CLOCK_SKEW_MAX_MS:
                message = f"{extent.first_time} is before {before.last_time}, the time of the event before it"
                tally.add("time", message, first)
        if before is None or extent.stretches[-1][1] > before.stretches[-1][1]:
            before = extent
