"""What a run found: samples by workload and contender, and the arithmetic on them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

from benchmarks.comparison.measure import GENERATOR_LIMIT_CORES, Sample

Unit = Literal["events/s", "deliveries/s", "connections/s", "bytes", "per s"]


class Row(msgspec.Struct, frozen=True):
    """One contender in one workload. `note`: why it has no samples, or what to know about them."""

    name: str
    samples: list[Sample]
    note: str = ""

    @property
    def rate(self) -> float:
        return self._median("rate")

    @property
    def p50_ms(self) -> float:
        return self._median("p50_ms")

    @property
    def p99_ms(self) -> float:
        return self._median("p99_ms")

    @property
    def generator_cores(self) -> float:
        return self._median("generator_cores")

    @property
    def server_cores(self) -> float:
        return self._median("server_cores")

    @property
    def generator_limited(self) -> bool:
        return self.generator_cores > GENERATOR_LIMIT_CORES

    def _median(self, field: str) -> float:
        return statistics.median(getattr(one, field) for one in self.samples) if self.samples else 0.0


class Table(msgspec.Struct, frozen=True):
    """One workload. The first row is what the others are compared with."""

    key: str
    title: str
    unit: Unit
    rows: list[Row]

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name and row.samples), None)


class Run(msgspec.Struct, frozen=True):
    """A whole run, as it is kept in `results.json`."""

    taken_at: str
    machine: str
    versions: dict[str, str]
    rounds: int
    seconds: float
    tables: list[Table]
    notes: list[str]

    def table(self, key: str) -> Table | None:
        return next((table for table in self.tables if table.key == key), None)


def ratio(ours: Row, other: Row, field: str = "rate") -> float | None:
    """The median of the ratios round by round, so that what slows the machine slows both.

    Rounds that only one of them has are left out; None if there are none, or the other is zero.
    """
    pairs: Sequence[tuple[Sample, Sample]] = list(zip(ours.samples, other.samples, strict=False))
    found = [getattr(a, field) / getattr(b, field) for a, b in pairs if getattr(b, field) > 0]
    return statistics.median(found) if found else None


def spread(row: Row) -> float:
    """How far the rounds are apart: the largest rate divided by the smallest."""
    rates = [one.rate for one in row.samples]
    return max(rates) / min(rates) if rates and min(rates) > 0 else 1.0
