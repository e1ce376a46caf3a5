"""`unisono check`: whether the log of a data directory or a database is sound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from unisono.store.check_log import LogAuditor, Progress
from unisono.store.port import LogFinding
from unisono.store.sqlite.check import open_directory

FINDINGS_KEPT_MAX: Final = 100
"""Findings listed in a report; a broken disk can have millions, which are counted."""


class CheckReport(msgspec.Struct, frozen=True):
    """The verdict: the first `findings`, and how many of each kind there are."""

    place: str
    events: int
    head: int
    pruned_to: int
    findings: tuple[LogFinding, ...]
    counts: Mapping[str, int]

    @property
    def ok(self) -> bool:
        return not self.counts

    def text(self) -> str:
        """What a person reads: the verdict first, then every finding with its event."""
        pruned = f", pruned to {self.pruned_to}" if self.pruned_to else ""
        extent = f"{self.events} events, head {self.head}{pruned}"
        if self.ok:
            return f"{self.place}: sound ({extent})"
        total = sum(self.counts.values())
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.counts.items()))
        lines = [f"{self.place}: NOT SOUND, {total} findings ({kinds}) in {extent}"]
        for finding in self.findings:
            place = "" if finding.committed_id is None else f"event {finding.committed_id}: "
            lines.append(f"  {finding.kind}: {place}{finding.message}")
        if total > len(self.findings):
            lines.append(f"  and {total - len(self.findings)} more")
        lines.append("Keep a copy of the log as it is before anything else is done with it.")
        return "\n".join(lines)


def check_directory(directory: Path, progress: Progress | None = None) -> CheckReport:
    """Look at everything in the log of `directory`; StoreUnusable when there is none this program can read."""
    return _check(str(directory), LogAuditor(lambda: open_directory(directory), progress))


def check_database(dsn: str, progress: Progress | None = None) -> CheckReport:
    """As `check_directory` for a PostgreSQL database; StoreUnusable also when the connection is lost."""
    from unisono.store.postgres.check import open_database
    from unisono.store.postgres.connect import describe_dsn

    return _check(describe_dsn(dsn), LogAuditor(lambda: open_database(dsn), progress))


def _check(place: str, auditor: LogAuditor) -> CheckReport:
    kept: list[LogFinding] = []
    counts: Counter[str] = Counter()
    for finding in auditor.findings():
        counts[finding.kind] += 1
        if len(kept) < FINDINGS_KEPT_MAX:
            kept.append(finding)
    return CheckReport(place, auditor.events, auditor.head, auditor.pruned_to, tuple(kept), dict(counts))
