"""The result of a revalidation as text and as an HTML page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from unisono.pipeline.html.charts import Series, stacked_bars
from unisono.pipeline.html.pages import Figure, render

if TYPE_CHECKING:
    from unisono.pipeline.jobs.revalidate.job import ModelName, ReasonResult, Revalidation
    from unisono.pipeline.jobs.revalidate.result import StateDifference

LINES_MAX: Final = 20
STATES_MAX: Final = 5
BARS_MAX: Final = 15
ROWS_MAX: Final = 100

SAME_VERSION: Final = (
    "Both models have the same model_version and are not the same: snapshots and clients would take the one for the "
    "other. Raise model_version before deploying it."
)
NOT_SETTLED: Final = (
    "Too many events in several partitions are refused by some of them only: counts of these, and of events after "
    "them, are approximate."
)


def text(result: Revalidation) -> str:
    """Text for a terminal, the verdict last."""
    total = result.total
    lines = [
        f"{result.events:,} events in {result.partitions:,} partitions, model {_model(result.before)} against "
        f"{_model(result.now)}",
        f"would be rejected if submitted today: {total.newly_rejected:,} that the model before takes "
        f"({total.rejected_now:,} in all, {total.rejected_before:,} by the model before)",
        f"would be skipped in replay: {total.newly_skipped:,} that the model before applies "
        f"({total.skipped_now:,} in all, {total.skipped_before:,} by the model before)",
        f"partitions with another state after replay: {result.differing:,}",
    ]
    for each in result.reasons[:LINES_MAX]:
        lines.append(f"  {each.events:>8,}  {each.kind.name}: {_why(each)}")
        lines += [f"            event {one.committed_id} in {one.partition!r}" for one in each.examples[:1]]
    if len(result.reasons) > LINES_MAX:
        lines.append(f"  … and {len(result.reasons) - LINES_MAX} more reasons")
    for difference in result.differences[:STATES_MAX]:
        lines.append(f"  state of {difference.partition!r}")
        lines += [f"            {_change(change)}" for change in difference.changes[:2]]
    if result.differing > STATES_MAX:
        lines.append(f"  … and {result.differing - STATES_MAX} more partitions")
    lines += _warnings(result)
    return "\n".join(lines)


def page(result: Revalidation) -> str:
    return render(
        "jobs/revalidate/page.html",
        result=result,
        models=(_model(result.now), _model(result.before)),
        warnings=_warnings(result),
        kinds=_kinds(result),
        rows_max=ROWS_MAX,
        changes=[
            (difference.partition, change.path, change.before, change.now)
            for difference in result.differences
            for change in difference.changes
        ],
        examples=[
            (f"{each.kind.name}: {_why(each)}", example)
            for each in result.reasons[:LINES_MAX]
            for example in each.examples[:1]
        ],
    )


def _kinds(result: Revalidation) -> Figure | None:
    rejected = [each for each in result.kinds if each.counts.rejected_now or each.counts.rejected_before]
    if not rejected:
        return None
    counts = [each.counts for each in rejected[:BARS_MAX]]
    chart = stacked_bars(
        [each.kind.name for each in rejected[:BARS_MAX]],
        [
            Series("newly rejected", [each.newly_rejected for each in counts]),
            Series("rejected by both models", [each.rejected_by_both for each in counts]),
            Series("no longer rejected", [each.no_longer_rejected for each in counts]),
        ],
        label="Rejected events by kind",
    )
    return Figure(
        chart,
        "Events that a server with this model would reject if they were submitted today, in the order of the log",
    )


def _warnings(result: Revalidation) -> list[str]:
    same = result.before.version == result.now.version and result.before.digest != result.now.digest
    beyond = (
        f"The log has {result.unjudged:,} events after these that are not in the lake and were not judged: export "
        "them first."
    )
    warnings = ((SAME_VERSION, same), (NOT_SETTLED, not result.settled), (beyond, result.unjudged))
    return [warning for warning, holds in warnings if holds]


def _model(name: ModelName) -> str:
    return f"version {name.version} ({name.digest[:8]})"


def _why(each: ReasonResult) -> str:
    reason = each.reason
    return f"{reason.field}: {reason.message}" if reason.field else reason.message


def _change(change: StateDifference) -> str:
    before, now = ("nothing" if value is None else value for value in (change.before, change.now))
    return f"{change.path}: {before} → {now}"
