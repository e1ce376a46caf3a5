"""What executors count in the files of `log`: sums by client, kind, size and delay, one file at a time.

Sums are partial: an engine adds them up by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from unisono.lake.scan import RowRange, scan_file
from unisono.lake.write import DataFile, release_arrow_memory
from unisono.pipeline.jobs.report.scope import EVER_MS, ReportScope
from unisono.pipeline.jobs.report.steps import step_start

CLIENT, KIND, SIZE, DELAY, TOTAL, OLDER, BEFORE = (
    "client",
    "kind",
    "size",
    "delay",
    "total",
    "older",
    "before",
)

SUMS: Final = pa.schema(
    [
        ("counted", pa.string()),
        ("step", pa.int64()),
        ("name", pa.string()),
        ("more", pa.string()),
        ("events", pa.int64()),
        ("bytes", pa.int64()),
        ("low", pa.int64()),
        ("high", pa.int64()),
    ]
)
"""Sums of some events. `counted` says what `step` and `name` are, and `low` and `high` the extremes of."""

_POWERS: Final = 10 ** np.arange(3, 19, dtype=np.int64)
_UUID7: Final = "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"


@release_arrow_memory()
def time_span(scope: ReportScope, file: DataFile) -> tuple[int, int] | None:
    """On an executor: the first and last time of a file's events within the range."""
    low, high = EVER_MS, -EVER_MS
    for batch in scan_file(
        scope.storage, file, RowRange(0, scope.head), ["committed_id", "status_updated_at"]
    ):
        times = np.asarray(batch.column("status_updated_at"))
        times = times[(times >= scope.from_ms) & (times < scope.to_ms)]
        if len(times):
            low, high = min(low, int(times.min())), max(high, int(times.max()))
    return (low, high) if low <= high else None


def sum_log_file(scope: ReportScope, file: DataFile) -> Iterator[pa.RecordBatch]:
    """On an executor: the sums of one file of `log`."""
    columns = ["committed_id", "id", "client_id", "event", "type", "schema", "status_updated_at"]
    parts = [
        part
        for batch in scan_file(scope.storage, file, RowRange(0, scope.head), columns)
        for part in _sums(scope, pa.Table.from_batches([batch]))
    ]
    if parts:
        whole = pa.concat_tables(parts).group_by(["counted", "step", "name", "more"])
        found = whole.aggregate([("events", "sum"), ("bytes", "sum"), ("low", "min"), ("high", "max")])
        yield from found.rename_columns(SUMS.names).combine_chunks().to_batches()


def _sums(scope: ReportScope, rows: pa.Table) -> Iterator[pa.Table]:
    size = pc.cast(pc.binary_length(rows.column("event")), pa.int64())
    rows = rows.append_column("bytes", size).rename_columns(
        ["at" if name == "status_updated_at" else name for name in rows.column_names] + ["bytes"]
    )
    at = rows.column("at")
    if scope.from_ms > -EVER_MS:
        yield _whole(BEFORE, 0, rows.filter(pc.less(at, scope.from_ms)))
    hot = rows.filter(pc.greater(rows.column("committed_id"), scope.since))
    yield _whole(OLDER, -1, hot)
    for number, before in enumerate(scope.ages):
        yield _whole(OLDER, number, hot.filter(pc.less(hot.column("at"), before)))
    rows = rows.filter(pc.and_(pc.greater_equal(at, scope.from_ms), pc.less(at, scope.to_ms)))
    if not rows.num_rows:
        return
    yield _whole(TOTAL, 0, rows)
    steps = step_start(np.asarray(rows.column("at")), scope.step_ms)
    rows = rows.append_column("step", pa.array(steps, pa.int64()))
    yield _grouped(CLIENT, rows, ["step", "client_id"], "at")
    yield _grouped(KIND, rows, ["step", "type", "schema"], "bytes")
    yield _distribution(SIZE, np.asarray(rows.column("bytes")))
    delays = _delays(rows)
    if len(delays):
        yield _distribution(DELAY, delays)


def _whole(of: str, step: int, rows: pa.Table) -> pa.Table:
    ids = pc.min_max(rows.column("committed_id"))
    size = pc.sum(rows.column("bytes")).as_py() or 0
    values = [of, step, None, None, rows.num_rows, size, ids["min"].as_py(), ids["max"].as_py()]
    return pa.table(
        [pa.array([value], field.type) for value, field in zip(values, SUMS, strict=True)], schema=SUMS
    )


def _grouped(of: str, rows: pa.Table, keys: Sequence[str], extremes: str) -> pa.Table:
    found = rows.group_by(list(keys)).aggregate(
        [("bytes", "count"), ("bytes", "sum"), (extremes, "min"), (extremes, "max")]
    )
    columns = [found.column(key) for key in keys]
    if len(columns) < 3:
        columns.append(pa.nulls(found.num_rows, pa.string()))
    values = ["bytes_count", "bytes_sum", f"{extremes}_min", f"{extremes}_max"]
    columns = [
        pa.array([of] * found.num_rows, pa.string()),
        *columns,
        *(found.column(name) for name in values),
    ]
    return pa.table(columns, schema=SUMS)


def _distribution(of: str, values: Any) -> pa.Table:
    """Counts of values rounded down to their first three digits."""
    power = 10 ** np.searchsorted(_POWERS, values, side="right").astype(np.int64)
    digits, places, counts = np.unique(values // power * power, return_inverse=True, return_counts=True)
    largest = np.full(len(digits), -EVER_MS)
    np.maximum.at(largest, places, values)
    nothing = pa.nulls(len(digits), pa.string())
    columns = [pa.array([of] * len(digits), pa.string()), pa.array(digits, pa.int64()), nothing, nothing]
    numbers = [
        pa.array(each, pa.int64()) for each in (counts, np.zeros(len(digits), np.int64), largest, largest)
    ]
    return pa.table([*columns, *numbers], schema=SUMS)


def _delays(rows: pa.Table) -> Any:
    """Milliseconds from draft to commit, -1 where the draft is dated after it, of ids that are UUIDs of version 7."""
    lower = pc.utf8_lower(rows.column("id"))
    timed = pc.match_substring_regex(lower, _UUID7)
    ids = lower.filter(timed)
    first, second = pc.utf8_slice_codeunits(ids, 0, 8), pc.utf8_slice_codeunits(ids, 9, 13)
    drafted = pc.cast(pc.binary_join_element_wise("0x", first, second, ""), pa.int64())
    return np.maximum(np.asarray(rows.column("at").filter(timed)) - np.asarray(drafted), -1)
