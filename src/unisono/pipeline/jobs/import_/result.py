"""The report of an import: every row by outcome and reason, per file, with examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from unisono.pipeline.errors import Mismatch
from unisono.pipeline.jobs.import_.outcomes import ACCEPTED, DUPLICATE, KNOWN, OUTCOMES, REASONS, REJECTED

EXAMPLES: Final = 5
"""Examples per reason; the table of rejected rows has all."""


FILES_LISTED: Final = 20
"""Files listed in the text; the JSON has all."""


class RowCounts(msgspec.Struct):
    """Rows by outcome; `rows` is their sum."""

    rows: int = 0
    accepted: int = 0
    duplicate: int = 0
    known: int = 0
    rejected: int = 0

    def add(self, outcome: str, count: int) -> None:
        setattr(self, outcome, getattr(self, outcome) + count)

    @property
    def accounted(self) -> int:
        return self.accepted + self.duplicate + self.known + self.rejected


class FileCounts(RowCounts):
    """The same for one source file."""

    path: str = ""


class RejectedExample(msgspec.Struct, frozen=True):
    """One rejected row."""

    file: str
    line: int
    id: str | None
    field: str
    message: str

    def text(self) -> str:
        """The error, and where in the event it is."""
        return f"{self.field}: {self.message}" if "." in self.field else self.message


class JudgingSummary(msgspec.Struct):
    """How events were judged: in `rounds`, after the first of which `again` rows of partitions were judged again; or
    in `components`, where the rounds took too long (else 0)."""

    rounds: int = 1
    again: int = 0
    components: int = 0


class LoadSummary(msgspec.Struct):
    """The rows loaded. `present` rows were loaded by an earlier run; `moved_times` had to be changed."""

    committed: int = 0
    present: int = 0
    foreign: int = 0
    moved_times: int = 0
    head: int = 0


class ImportPreparation(msgspec.Struct):
    """The counts when every row is decided; kept with the staged rows."""

    totals: RowCounts
    files: list[FileCounts]
    reasons: dict[str, int]
    examples: dict[str, list[RejectedExample]]
    migrated: int
    by_id: bool
    judged: JudgingSummary | None
    seconds: float


class ImportReport(msgspec.Struct):
    """Everything about one import; `loaded` is None for a dry run."""

    import_id: str
    store: str
    order: str
    model: str
    validated: str
    base: int
    rejects: str
    prepared: ImportPreparation
    loaded: LoadSummary | None
    seconds: float
    staging: str | None = None

    def text(self) -> str:
        """Text for people."""
        lines = [*self._totals(), *self._reasons(), *self._files(), *self._judged(), *self._load()]
        return "\n".join(lines)

    def _totals(self) -> list[str]:
        total = self.prepared.totals
        lines = [
            f"{total.rows} rows: {total.accepted} to load, {total.duplicate} duplicates, "
            f"{total.known} in the log already, {total.rejected} rejected"
        ]
        if self.prepared.migrated:
            lines.append(f"  {self.prepared.migrated} rows had the legacy field partition")
        return lines

    def _reasons(self) -> list[str]:
        lines = []
        for reason, count in sorted(self.prepared.reasons.items(), key=lambda item: (-item[1], item[0])):
            lines.append(f"  {count:>9} {reason}: {REASONS[reason]}")
            for example in self.prepared.examples.get(reason, [])[:1]:
                lines.append(f"            e.g. {example.file}:{example.line}: {example.text()}")
        return lines

    def _files(self) -> list[str]:
        files = self.prepared.files
        if len(files) < 2:
            return []
        lines = [
            f"  {file.path}: {file.rows} rows, {file.accepted} to load, {file.duplicate} duplicates, "
            f"{file.known} known, {file.rejected} rejected"
            for file in files[:FILES_LISTED]
        ]
        if len(files) > FILES_LISTED:
            lines.append(f"  and {len(files) - FILES_LISTED} more files: import.json (--out) has all of them")
        return lines

    def _judged(self) -> list[str]:
        judged = self.prepared.judged
        if judged is None:
            return ["  checked by shape only, not against the states"]
        lines = [f"  judged with model {self.model}"]
        if judged.components:
            lines.append(
                "  refusals of events in several partitions depend on each other in long chains: partitions that "
                "hang together by shared events were judged by one task"
            )
        elif judged.again:
            lines.append(
                f"  events in several partitions were refused by some of them: {judged.again} rows were judged "
                f"again, in {judged.rounds} rounds in all"
            )
        return lines

    def _load(self) -> list[str]:
        if self.prepared.totals.rejected:
            return [f"  rejected rows: {self.rejects}"]
        return []


def tally(
    paths: Sequence[str],
    read: Mapping[int, int],
    decided: Sequence[tuple[int, str, str | None, int]],
    refused: Sequence[tuple[int, str, int]],
) -> tuple[RowCounts, list[FileCounts], dict[str, int]]:
    """Count rows per file in two ways and compare: each row that was read must have an outcome."""
    files = [FileCounts(path=path, rows=read.get(number, 0)) for number, path in enumerate(paths)]
    totals = RowCounts(rows=sum(read.values()))
    reasons: dict[str, int] = {}
    outcomes = [*decided, *((file, REJECTED, reason, count) for file, reason, count in refused)]
    for file, outcome, reason, count in outcomes:
        assert outcome in OUTCOMES
        files[file].add(outcome, count)
        totals.add(outcome, count)
        if reason is not None and outcome == REJECTED:
            reasons[reason] = reasons.get(reason, 0) + count
    for counts in (totals, *files):
        if counts.accounted != counts.rows:
            raise Mismatch(f"{counts.rows} rows were read and {counts.accounted} have an outcome: {counts}")
    return totals, files, reasons


__all__ = [
    "ACCEPTED",
    "DUPLICATE",
    "KNOWN",
    "ImportPreparation",
    "ImportReport",
    "JudgingSummary",
    "LoadSummary",
    "RejectedExample",
    "RowCounts",
    "tally",
]
