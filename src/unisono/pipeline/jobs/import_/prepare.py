"""Decides the rows that were read, and stages the accepted ones for loading, with their counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from unisono.pipeline.errors import Mismatch
from unisono.pipeline.jobs.import_ import rejects_table as rejects
from unisono.pipeline.jobs.import_.commit_times import CommitTimes, settle_times
from unisono.pipeline.jobs.import_.compare_rows import Deciding
from unisono.pipeline.jobs.import_.decide import (
    ASSIGN,
    DECIDED,
    ROW_GROUP_BYTES,
    Shares,
    components,
    decide,
    in_order,
    staged_files,
)
from unisono.pipeline.jobs.import_.read_split import Summary
from unisono.pipeline.jobs.import_.repeats import find_repeats
from unisono.pipeline.jobs.import_.result import (
    EXAMPLES,
    ImportPreparation,
    JudgingSummary,
    RejectedExample,
    tally,
)
from unisono.pipeline.jobs.import_.rounds import SETTLED, Settling, Unsettled, settle
from unisono.pipeline.jobs.import_.staging import ImportProgress, Staging
from unisono.pipeline.jobs.import_.verdicts import decided_rows
from unisono.pipeline.spark.plans import show_plan
from unisono.store.bulk_load import earliest_time

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from unisono.pipeline.jobs.import_.job import ImportPlan

REPEAT_FILES_MAX: Final = 256
"""Files of repeated rows, and of times: a task reads the one that has its split."""


def prepare(
    spark: SparkSession,
    plan: ImportPlan,
    staging: Staging,
    manifest: ImportProgress,
    summaries: list[Summary],
    last_ms: int,
) -> ImportPreparation:
    """Decide every row, stage the accepted ones in order and the rejected ones beside them.

    `last_ms`: the time of the log's last event.
    """
    staging.clear("repeats", "times", "decided", SETTLED, "staged", "loaded.json")
    paths = tuple(source.path for source in plan.sources)
    ordered = any(summary.ordered for summary in summaries)
    order = "time" if plan.order == ASSIGN else "committed_id" if ordered else None
    folder = staging.path("rows")
    times = None
    if plan.full and plan.model.load().reads_commit_time:
        earliest = earliest_time(last_ms, manifest.first_ms, manifest.began_ms)
        times = CommitTimes(str(staging.path("times")), earliest, manifest.began_ms)
    deciding = Deciding(
        plan.store,
        manifest.base,
        plan.model,
        order,
        paths,
        tuple(summary.file for summary in summaries),
        str(folder),
        str(staging.path("repeats")),
        min(len(summaries), REPEAT_FILES_MAX),
        times,
    )
    events = sum(summary.events for summary in summaries)
    judged = _decide(spark, plan, staging, deciding, events)
    decided = spark.read.schema(DECIDED).parquet(str(staging.path("decided")))
    counted = [(*key, number) for key, number in _outcomes(staging.path("decided")).items()]
    read: Counter[int] = Counter()
    for summary in summaries:
        read[summary.file] += summary.rows
    refused = [(s.file, reason, number) for s in summaries for reason, number in s.reasons.items()]
    totals, files, reasons = tally(paths, read, counted, refused)
    examples = _Examples()
    if totals.rejected or Path(plan.rejects).is_dir():
        batches = rejects.batches(manifest.key, paths, folder, staging.path("decided"))
        rejects.write(plan.rejects, manifest.key, batches, examples.add)
    staged_rows = in_order(decided, totals.accepted)
    show_plan("import.in_order", staged_rows)
    staged_rows.write.option("parquet.block.size", ROW_GROUP_BYTES).parquet(str(staging.path("staged")))
    manifest.files = staged_files(staging.path("staged"))
    staged = sum(rows for _, rows in manifest.files)
    if staged != totals.accepted:
        raise Mismatch(f"{totals.accepted} rows were accepted and {staged} staged: nothing was loaded")
    migrated = sum(summary.migrated for summary in summaries)
    staging.clear("decided", SETTLED, "repeats", "times")
    by_id = order == "committed_id"
    return ImportPreparation(totals, files, reasons, examples.by_reason(), migrated, by_id, judged, 0.0)


def _decide(
    spark: SparkSession, plan: ImportPlan, staging: Staging, deciding: Deciding, events: int
) -> JudgingSummary | None:
    """Write every row with its outcome; how events were judged, None if only by their shape."""
    folder, target = staging.path("rows"), staging.path("decided")
    keys = [str(path) for path in sorted(folder.glob("*.keys.parquet"))]
    links = [str(path) for path in sorted(folder.glob("*.links.parquet"))]
    shares = Shares.of(spark, len(deciding.split_files), events, judged=plan.full)
    find_repeats(spark, keys, deciding.order, Path(deciding.repeats), deciding.repeat_files)
    if deciding.times is not None:
        settle_times(spark, keys, deciding.order, deciding.repeats, deciding.times, deciding.repeat_files)
    decide(spark, deciding, shares, None, target)
    if not plan.full:
        return None
    if not any(pq.read_metadata(path).num_rows for path in links):
        return JudgingSummary()  # no event is in several partitions
    try:
        return settle(spark, Settling(deciding, str(target), shares.judging, events))
    except Unsettled:
        staging.clear("decided")
        leaders = components(links)
        decide(spark, deciding, shares, leaders, target)
        return JudgingSummary(components=len(set(leaders.values())))


def _outcomes(folder: Path) -> Counter[tuple[int, str, str | None]]:
    """The number of rows by file, outcome and reason."""
    outcomes: Counter[tuple[int, str, str | None]] = Counter()
    columns = ["file", "outcome", "reason"]
    decided = decided_rows(folder).to_batches(columns=columns, filter=ds.field("place") == 0)
    for batch in decided:
        counted = pa.Table.from_batches([batch]).group_by(columns).aggregate([([], "count_all")])
        for row in counted.to_pylist():
            outcomes[row["file"], row["outcome"], row["reason"]] += row["count_all"]
    return outcomes


class _Examples:
    """Collects the first examples of each reason from rejected rows in any order."""

    def __init__(self) -> None:
        self._found: dict[str, list[tuple[str, int, RejectedExample]]] = {}

    def add(self, batch: Any) -> None:
        files, lines, reasons = (batch.column(name) for name in ("file", "line", "reason"))
        for reason in reasons.unique().to_pylist():
            found = self._found.setdefault(reason, [])
            places = pa.table({"file": files, "line": lines}).filter(pc.equal(reasons, reason))
            first = pc.sort_indices(places, [("file", "ascending"), ("line", "ascending")])[:EXAMPLES]
            for row in (
                batch.filter(pc.equal(reasons, reason)).take(first).drop_columns("content").to_pylist()
            ):
                example = RejectedExample(row["file"], row["line"], row["id"], row["field"], row["message"])
                found.append((example.file, example.line, example))
            found.sort(key=lambda each: each[:2])
            del found[EXAMPLES:]

    def by_reason(self) -> dict[str, list[RejectedExample]]:
        return {reason: [example for *_, example in found] for reason, found in sorted(self._found.items())}
