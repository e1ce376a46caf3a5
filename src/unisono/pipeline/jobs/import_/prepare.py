"""Decides the rows that were read, and stages the accepted ones for loading, with their counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from unisono.pipeline.errors import Mismatch
from unisono.pipeline.jobs.import_ import rejects_table as rejects
from unisono.pipeline.jobs.import_.decide import KEEP, Deciding, decide, in_order, staged_files
from unisono.pipeline.jobs.import_.outcomes import ACCEPTED
from unisono.pipeline.jobs.import_.read_split import Summary
from unisono.pipeline.jobs.import_.result import (
    EXAMPLES,
    ImportPreparation,
    JudgingSummary,
    RejectedExample,
    tally,
)
from unisono.pipeline.jobs.import_.staging import ImportProgress, Staging
from unisono.pipeline.spark.plans import show_plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from unisono.pipeline.jobs.import_.job import ImportPlan

SURVEY_ROWS: Final = 1 << 20
"""Rows whose components are collected before they are counted."""


def prepare(
    spark: SparkSession,
    plan: ImportPlan,
    staging: Staging,
    manifest: ImportProgress,
    summaries: list[Summary],
) -> ImportPreparation:
    """Decide every row, stage the accepted ones in order and the rejected ones beside them."""
    staging.clear("decided", "staged", "loaded.json")
    paths = tuple(source.path for source in plan.sources)
    by_id = plan.order == KEEP and any(summary.ordered for summary in summaries)
    deciding = Deciding(plan.store, manifest.base, plan.model, by_id, paths)
    events = sum(summary.events for summary in summaries)
    folder = staging.path("rows")
    frame = decide(
        spark,
        [str(path) for path in sorted(folder.glob("*.rows.parquet"))],
        deciding,
        plan.order,
        [str(path) for path in sorted(folder.glob("*.links.parquet"))],
        plan.full,
        events,
    )
    show_plan("import.decide", frame)
    frame.write.parquet(str(staging.path("decided")))
    decided = spark.read.parquet(str(staging.path("decided")))
    survey = _Survey(staging.path("decided"))
    counted = [(*key, number) for key, number in survey.outcomes.items()]
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
    staged_rows.write.parquet(str(staging.path("staged")))
    manifest.files = staged_files(staging.path("staged"))
    staged = sum(rows for _, rows in manifest.files)
    if staged != totals.accepted:
        raise Mismatch(f"{totals.accepted} rows were accepted and {staged} staged: nothing was loaded")
    judged = survey.judged() if plan.full else None
    migrated = sum(summary.migrated for summary in summaries)
    staging.clear("decided")
    return ImportPreparation(totals, files, reasons, examples.by_reason(), migrated, by_id, judged, 0.0)


class _Survey:
    """One pass over some columns of the decided rows: counts of outcomes, and of components."""

    def __init__(self, folder: Path) -> None:
        self.outcomes: Counter[tuple[int, str, str | None]] = Counter()
        self._components = np.empty(0, np.int64)
        self._sizes = np.empty(0, np.int64)
        pending: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        pending_rows = 0
        columns = ["file", "outcome", "reason", "component"]
        for batch in _dataset(folder).to_batches(columns=columns):
            table = pa.Table.from_batches([batch])
            counted = table.group_by(columns[:3]).aggregate([([], "count_all")])
            for row in counted.to_pylist():
                self.outcomes[row["file"], row["outcome"], row["reason"]] += row["count_all"]
            judged = pc.or_kleene(pc.equal(table["outcome"], ACCEPTED), pc.equal(table["reason"], "refused"))
            pending.append(table["component"].filter(pc.fill_null(judged, False)).to_numpy())
            pending_rows += len(pending[-1])
            if pending_rows >= SURVEY_ROWS:
                self._merge(pending)
                pending, pending_rows = [], 0
        self._merge(pending)

    def _merge(self, pending: list[np.ndarray[Any, np.dtype[np.int64]]]) -> None:
        numbers = np.concatenate([self._components, *pending])
        weights = np.concatenate([self._sizes, np.ones(len(numbers) - len(self._sizes), np.int64)])
        self._components, places = np.unique(numbers, return_inverse=True)
        self._sizes = np.zeros(len(self._components), np.int64)
        np.add.at(self._sizes, places, weights)

    def judged(self) -> JudgingSummary:
        return JudgingSummary(len(self._components), int(self._sizes.max(initial=0)))


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


def _dataset(folder: Path) -> Any:
    return ds.dataset(sorted(str(path) for path in folder.glob("part-*.parquet")), format="parquet")
