"""A run as Markdown: ratios first, then a table for each workload."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.comparison.results import Row, Run, Table, ratio, spread
from benchmarks.comparison.workloads import FLOOR, JUDGING, OPEN

BEGIN = "<!-- figures: written by `make bench`, do not edit -->"
END = "<!-- figures end -->"
SPREAD_WORTH_SAYING = 1.5
NOT_COMPARED = ("raw",)
"""Tables whose rows are of different things."""
TIMES = "\N{MULTIPLICATION SIGN}"


class Question(msgspec.Struct, frozen=True):
    """One ratio worth seeing first: two rows of one workload, or of two."""

    text: str
    ours: tuple[str, str]
    other: tuple[str, str]
    field: str = "rate"


_SUBMIT_50, _BATCH = "submit-50", "batch-100"
QUESTIONS = (
    Question("durable submits, 50 connections, to UmaDB", (_SUBMIT_50, OPEN), (_SUBMIT_50, "UmaDB")),
    Question("the same, to NATS JetStream", (_SUBMIT_50, OPEN), (_SUBMIT_50, "NATS JetStream")),
    Question("the same, to the JavaScript reference", (_SUBMIT_50, OPEN), (_SUBMIT_50, "JavaScript reference")),
    Question("the same, to Durable Streams", (_SUBMIT_50, OPEN), (_SUBMIT_50, "Durable Streams")),
    Question("judging model, to the open model", (_SUBMIT_50, JUDGING), (_SUBMIT_50, OPEN)),
    Question("batches of 100, to UmaDB", (_BATCH, OPEN), (_BATCH, "UmaDB")),
    Question("batches of 100, to the JavaScript reference", (_BATCH, OPEN), (_BATCH, "JavaScript reference")),
    Question("p50 of 1 connection, to one fdatasync and one echo", ("submit-1", OPEN),
             ("submit-1", FLOOR), "p50_ms"),
    Question("catch-up of one partition, 4 connections, to UmaDB", ("catchup-dense-4", OPEN),
             ("catchup-dense-4", "UmaDB")),
    Question("the same, to the JavaScript reference", ("catchup-dense-4", OPEN),
             ("catchup-dense-4", "JavaScript reference")),
    Question("fan-out, to Hocuspocus", ("fan-out", OPEN), ("fan-out", "Hocuspocus")),
    Question("fan-out, to the JavaScript reference", ("fan-out", OPEN), ("fan-out", "JavaScript reference")),
    Question("connections opened, to the JavaScript reference", ("connect", OPEN),
             ("connect", "JavaScript reference")),
)  # fmt: skip


def markdown(run: Run, pictures: Sequence[tuple[str, str]] = ()) -> str:
    """The whole section. `pictures`: the address of each, and what it shows."""
    parts = [_header(run), _ratios(run)]
    parts += [f"{label}:\n\n![{label}]({address})" for address, label in pictures]
    parts += [_table(table) for table in run.tables]
    if run.notes:
        parts.append("\n".join(f"- {note}" for note in run.notes))
    return "\n\n".join(parts)


def replaced(page: str, section: str) -> str:
    """The page with another section between its markers. ValueError when they are not there, once each, in order."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError(f"the page needs one line {BEGIN!r} and after it one line {END!r}")
    before, after = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
    return f"{before}\n\n{section}\n\n{after}"


def write_page(page: Path, run: Run, pictures: Sequence[tuple[str, str]]) -> None:
    page.write_text(replaced(page.read_text("utf-8"), markdown(run, pictures)), "utf-8")


def number(value: float) -> str:
    """Three digits that count."""
    if value >= 100:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}{TIMES}"


def _header(run: Run) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    return (
        f"Taken {run.taken_at} on {run.machine}. Medians of {run.rounds} interleaved round(s) of {run.seconds:g} s."
        f"\n\nVersions: {versions}."
    )


def _ratios(run: Run) -> str:
    lines = ["| Unisono | ratio | better is |", "| --- | --- | --- |"]
    for question in QUESTIONS:
        ours, other = _row(run, question.ours), _row(run, question.other)
        if ours is not None and other is not None:
            better = "more" if question.field == "rate" else "less"
            lines.append(f"| {question.text} | {times(ratio(ours, other, question.field))} | {better} |")
    at_50 = _row(run, (_SUBMIT_50, OPEN))
    if at_50 is not None and at_50.p50_ms:
        lines.append(f"| p99 to p50, 50 connections | {times(at_50.p99_ms / at_50.p50_ms)} | less |")
    for key, text in (
        ("grow-events", "with the largest log, to the smallest"),
        ("grow-connections", "beside other connections, to none"),
    ):
        table = run.table(key)
        if table is not None and len(table.rows) > 1:
            share = ratio(table.rows[-1], table.rows[0])
            lines.append(f"| submits of 50 connections {text} | {times(share)} | more |")
    return "\n".join(lines)


def _row(run: Run, place: tuple[str, str]) -> Row | None:
    table = run.table(place[0])
    return table.row(place[1]) if table is not None else None


def _table(table: Table) -> str:
    first = next((row for row in table.rows if row.samples), None)
    latencies = any(row.p50_ms for row in table.rows)
    compares = table.key not in NOT_COMPARED
    heads = [
        table.title,
        table.unit,
        *(["to the first"] if compares else []),
        *(["p50 ms", "p99 ms"] if latencies else []),
    ]
    heads += ["server cores", "generator cores"] if any(row.server_cores for row in table.rows) else []
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join('---' for _ in heads)} |"]
    for row in table.rows:
        if not row.samples:
            lines.append(f"| {row.name} | {row.note or '-'} |{' |' * (len(heads) - 2)}")
            continue
        assert first is not None
        cells = [row.name, number(row.rate), *([times(ratio(row, first))] if compares else [])]
        if latencies:
            cells += [number(row.p50_ms), number(row.p99_ms)] if row.p50_ms else ["-", "-"]
        if "server cores" in heads:
            limit = " (its limit)" if row.generator_limited else ""
            cells += [f"{row.server_cores:.2f}", f"{row.generator_cores:.2f}{limit}"]
        lines.append(f"| {' | '.join(cells)} |")
    wide = [f"{row.name} {spread(row):.1f}{TIMES}" for row in table.rows if spread(row) > SPREAD_WORTH_SAYING]
    if wide:
        lines += ["", f"Rounds apart, fastest to slowest: {', '.join(wide)}."]
    return "\n".join(lines)
