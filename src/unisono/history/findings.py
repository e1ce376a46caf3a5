"""What a check of a history finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

INVARIANTS: Final = {
    "H1": "an id, its committed_id and its content belong together for everyone",
    "H2": "every acknowledged or observed event is in the final log or archive",
    "H3": "rejected and never-sent ids are absent; an unknown outcome appears at most once",
    "H4": "what was observed before a submission has a smaller committed_id; a batch keeps its order",
    "H5": "a watermark is at or above everything acknowledged before its request",
    "H6": "pages are exactly the log's events of their partitions, in order, up to the watermark",
    "H7": "broadcasts ascend without holes, and never echo",
    "H8": "deliveries and commits lie within the scope and time of the token, and end with a revocation",
    "H9": "the first sync of a connection returns one's own acknowledged events",
    "H10": "a superseded connection succeeds in nothing",
    "H11": "the lake is the log's prefix, each event once; every snapshot is a replay",
    "H12": "client stores are the log's events, and no draft is also committed",
    "H13": "the events of an atomic batch follow each other in the log, or none of them is there",
}


class HistoryFinding(msgspec.Struct, frozen=True):
    """A broken invariant; `where` names the record that shows it."""

    invariant: str
    text: str
    where: str = ""


class InvariantCheck:
    """Counts what one invariant was applied to, and has what it found."""

    def __init__(self, invariant: str) -> None:
        self.invariant = invariant
        self.checked = 0
        self.findings: list[HistoryFinding] = []

    def expect(self, holds: bool, text: str, where: str = "") -> None:
        """One application of the invariant."""
        self.checked += 1
        if not holds:
            self.findings.append(HistoryFinding(self.invariant, text, where))


class Verdict(msgspec.Struct, frozen=True):
    """The checks of a history, in the order of `INVARIANTS`."""

    checks: tuple[InvariantCheck, ...]

    def findings(self) -> Iterator[HistoryFinding]:
        for check in self.checks:
            yield from check.findings

    @property
    def sound(self) -> bool:
        return not any(check.findings for check in self.checks)


def listed(numbers: list[int], most: int = 5) -> str:
    """The first few numbers, and how many more there are."""
    more = f" and {len(numbers) - most} more" if len(numbers) > most else ""
    return ", ".join(map(str, numbers[:most])) + more
