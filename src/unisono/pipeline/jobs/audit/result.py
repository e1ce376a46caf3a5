"""The result of an audit as text and JSON: verdict, checks, and findings with their events."""

from __future__ import annotations

from typing import Final

import msgspec

from unisono.display import hide_credentials
from unisono.lake.run_tables import AuditRecord
from unisono.pipeline.jobs.audit.findings import KINDS, WARNINGS, AuditFinding
from unisono.pipeline.jobs.audit.tasks import AuditOutcome, CommitTime, Scope

LISTED: Final = 20
"""Findings of one kind in the text; the JSON has all that were kept."""

ERASED_LISTED: Final = 1_000
"""Ids of tombstones in the report."""

TICKS_MAX: Final = 2_000
"""Points of the growth of the log in the report."""


class AuditStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """One check: how many items, and its duration if measured."""

    what: str
    count: int
    unit: str
    seconds: float | None = None
    note: str = ""


class FindingKind(msgspec.Struct, frozen=True):
    """The number of findings of one kind, in total and per part of the history (`places`, of equal length)."""

    kind: str
    meaning: str
    count: int
    warning: bool
    places: list[int]


class AuditReport(msgspec.Struct, frozen=True):
    """The verdict. `findings` holds the first of each kind, `kinds` counts them all."""

    lake: str
    store: str | None
    sound: bool
    head: int
    events: int
    seconds: float
    checked: list[AuditStep]
    kinds: list[FindingKind]
    findings: list[AuditFinding]
    erased: int
    erased_ids: list[int]
    ticks: list[CommitTime]

    @property
    def rate(self) -> float:
        return self.events / self.seconds if self.seconds > 0 else 0.0

    @property
    def wrong(self) -> int:
        """Findings that make the history unsound."""
        return sum(kind.count for kind in self.kinds if not kind.warning)

    def verdict(self) -> str:
        """One line."""
        if self.sound:
            return f"sound, events 1 to {self.head}" if self.head else "sound, and empty"
        count = "1 finding" if self.wrong == 1 else f"{self.wrong} findings"
        return f"NOT SOUND, {count} in events 1 to {self.head}"

    def text(self) -> str:
        """Text for people: the verdict, the checks, then each kind with its first findings."""
        lines = [f"{self.lake}: {self.verdict()}"]
        for one in self.checked:
            note = f" ({one.note})" if one.note else ""
            lines.append(f"  {one.what}: {one.count} {one.unit}{note}")
        if self.erased:
            named = ", ".join(map(str, self.erased_ids[:LISTED]))
            more = ", …" if self.erased > LISTED else ""
            lines.append(f"  erased: {self.erased} events, whose hashes cannot be recomputed ({named}{more})")
        for kind in self.kinds:
            warning = "warning, " if kind.warning else ""
            lines.append(f"{kind.kind} ({warning}{kind.count}): {kind.meaning}")
            first = [finding for finding in self.findings if finding.kind == kind.kind][:LISTED]
            lines += [f"  {finding.text().partition(': ')[2]}" for finding in first]
            if kind.count > len(first):
                lines.append(f"  and {kind.count - len(first)} more")
        if not self.sound:
            lines.append("Keep a copy of lake and log as they are before anything else is done with them.")
        return "\n".join(lines)

    def records(self, run_id: str, began_ms: int) -> list[AuditRecord]:
        """The rows of this audit in the lake's table of findings: kinds, counts and events, no messages, which can
        quote events.
        """
        return [
            AuditRecord(
                run_id,
                began_ms,
                kind.kind,
                kind.meaning,
                kind.warning,
                kind.count,
                [
                    finding.committed_id
                    for finding in self.findings
                    if finding.kind == kind.kind and finding.committed_id is not None
                ],
            )
            for kind in self.kinds
        ]

    def json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1)


def build_report(
    lake: str, scope: Scope, outcome: AuditOutcome, checked: list[AuditStep], seconds: float
) -> AuditReport:
    tally, erased = outcome.tally, outcome.erased()
    kinds = [
        FindingKind(
            kind,
            meaning,
            tally.counts[kind],
            kind in WARNINGS,
            tally.places[kind].tolist() if kind in tally.places else [],
        )
        for kind, meaning in KINDS.items()
        if kind in tally.counts
    ]
    ticks = sorted(outcome.ticks, key=lambda tick: tick.committed_id)
    step = -(-len(ticks) // TICKS_MAX) or 1
    return AuditReport(
        lake,
        None if scope.store is None else hide_credentials(scope.store),
        all(kind.warning for kind in kinds),
        scope.head,
        outcome.counts.get("events", 0),
        seconds,
        checked,
        kinds,
        tally.kept(),
        len(erased),
        erased[:ERASED_LISTED].tolist(),
        ticks[::step] if (len(ticks) - 1) % step == 0 else [*ticks[::step], ticks[-1]],
    )
