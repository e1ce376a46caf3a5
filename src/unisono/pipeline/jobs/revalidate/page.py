"""The result of a revalidation as text and as an HTML page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from unisono.pipeline.html.charts import Series, stacked_bars
from unisono.pipeline.html.pages import Fact, HtmlPage

if TYPE_CHECKING:
    from unisono.pipeline.jobs.revalidate.job import ReasonResult, Revalidation
    from unisono.pipeline.jobs.revalidate.result import StateDifference, VerdictExample

LINES_MAX: Final = 20
STATES_TOLD_MAX: Final = 5
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
        f"{result.events:,} events in {result.partitions:,} partitions, model {_model(result, 'before')} against "
        f"{_model(result, 'now')}",
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
    for difference in result.differences[:STATES_TOLD_MAX]:
        lines.append(f"  state of {difference.partition!r}")
        lines += [f"            {_change(change)}" for change in difference.changes[:2]]
    if result.differing > STATES_TOLD_MAX:
        lines.append(f"  … and {result.differing - STATES_TOLD_MAX} more partitions")
    lines += _warnings(result)
    return "\n".join(lines)


def page(result: Revalidation) -> str:
    total = result.total
    doc = HtmlPage(
        "History under another model",
        f"Model {_model(result, 'now')} against {_model(result, 'before')}, on events 1 to {result.head:,}.",
        "Made by `unisono lake revalidate`; nothing was changed by it.",
    )
    doc.verdict(f"{result.verdict[:1].upper()}{result.verdict[1:]}.", good=result.compatible)
    for warning in _warnings(result):
        doc.verdict(warning, good=False)
    doc.facts(
        [
            Fact("events judged", result.events),
            Fact("partitions", result.partitions),
            Fact("newly rejected", total.newly_rejected),
            Fact("newly skipped", total.newly_skipped),
            Fact("states that differ", result.differing),
        ]
    )
    _kinds(doc, result)
    _reasons(doc, result)
    _states(doc, result)
    return doc.html()


def _kinds(doc: HtmlPage, result: Revalidation) -> None:
    doc.section("By kind of event")
    shown = [each for each in result.kinds if each.counts.rejected_now or each.counts.rejected_before][
        :BARS_MAX
    ]
    if shown:
        doc.figure(
            stacked_bars(
                [each.kind.name for each in shown],
                [
                    Series("newly rejected", [each.counts.newly_rejected for each in shown]),
                    Series(
                        "rejected by both models",
                        [each.counts.rejected_now - each.counts.newly_rejected for each in shown],
                    ),
                    Series("no longer rejected", [each.counts.no_longer_rejected for each in shown]),
                ],
                label="Rejected events by kind",
            ),
            "Events that a server with this model would reject if they were submitted today, in the order of the log",
        )
    doc.table(
        [
            "type",
            "schema",
            "events",
            "newly rejected",
            "no longer",
            "by both",
            "newly skipped",
            "skipped before",
        ],
        [
            [
                each.kind.type,
                each.kind.schema,
                each.counts.events,
                each.counts.newly_rejected,
                each.counts.no_longer_rejected,
                each.counts.rejected_now - each.counts.newly_rejected,
                each.counts.newly_skipped,
                each.counts.skipped_before,
            ]
            for each in result.kinds[:ROWS_MAX]
        ],
    )
    doc.note(
        "An event of several partitions is rejected when any one of them refuses it, and counts once. Skips are "
        f"counted in each partition. {result.erased:,} erased events are not judged."
    )


def _reasons(doc: HtmlPage, result: Revalidation) -> None:
    doc.section("Why events would be rejected")
    if not result.reasons:
        doc.text("No event that the model before takes would be rejected.")
        return
    doc.table(
        ["events", "kind", "stage", "field", "message"],
        [
            [each.events, each.kind.name, each.reason.stage, each.reason.field, each.reason.message]
            for each in result.reasons[:ROWS_MAX]
        ],
    )
    doc.note(
        "Stage shape: the event itself is wrong. Stage state: a check or a precondition speaks against it, given "
        "what came before. Stage rule: a reducer fails on it. The first reason of each event is counted."
    )
    doc.heading("Examples")
    for each in result.reasons[:LINES_MAX]:
        for example in each.examples[:1]:
            doc.text(f"{each.kind.name}: {_why(each)}. {_where(example)}")
            doc.code(example.event)


def _states(doc: HtmlPage, result: Revalidation) -> None:
    doc.section("States after replay")
    if result.skipped:
        doc.text(
            f"{result.total.newly_skipped:,} times would an event be skipped in replay that the model before "
            "applies, first:"
        )
        for example in result.skipped:
            doc.text(_where(example))
            doc.code(example.event)
    if not result.differing:
        doc.text(
            f"The states of all {result.partitions:,} partitions are the same under both models, byte for byte."
        )
        return
    doc.text(
        f"{result.differing:,} of {result.partitions:,} partitions would have another state. The first of them:"
    )
    doc.table(
        ["partition", "place", "before", "now"],
        [
            [difference.partition, change.path, change.before, change.now]
            for difference in result.differences
            for change in difference.changes
        ],
    )


def _warnings(result: Revalidation) -> list[str]:
    same = result.before.version == result.now.version and result.before.digest != result.now.digest
    beyond = (
        f"The log has {result.unjudged:,} events after these that are not in the lake and were not judged: export "
        "them first."
    )
    return [
        warning
        for warning, holds in (
            (SAME_VERSION, same),
            (NOT_SETTLED, not result.settled),
            (beyond, result.unjudged),
        )
        if holds
    ]


def _model(result: Revalidation, which: str) -> str:
    name = result.before if which == "before" else result.now
    return f"version {name.version} ({name.digest[:8]})"


def _why(each: ReasonResult) -> str:
    reason = each.reason
    return f"{reason.field}: {reason.message}" if reason.field else reason.message


def _where(example: VerdictExample) -> str:
    return f"Event {example.committed_id:,} ({example.id}) of {example.client_id} in {example.partition}:"


def _change(change: StateDifference) -> str:
    return f"{change.path}: {_value(change.before)} → {_value(change.now)}"


def _value(value: str | None) -> str:
    return "nothing" if value is None else value
