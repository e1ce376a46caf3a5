"""Checks one data file of the lake: readable, sorted, correct statistics, each row in its bucket.

The events of `log` are checked in the same pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from unisono.lake.columns import SNAPSHOT_SCHEMA, bucket_of
from unisono.lake.file_checks import has_own_name
from unisono.lake.sections import section_of
from unisono.lake.storage import LOG
from unisono.lake.write import FILE_SCHEMAS, UNBUCKETED, DataFile
from unisono.pipeline.jobs.audit.balance import LogSlice
from unisono.pipeline.jobs.audit.event_checks import REQUIRED, EventCheck, complete_rows
from unisono.pipeline.jobs.audit.findings import FindingTally
from unisono.pipeline.jobs.audit.read_file import FileStatistics, as_bytes, batches, readable, value_text
from unisono.pipeline.jobs.audit.tasks import AuditOutcome, CommitTime, FileContent, Scope
from unisono.pipeline.row_fingerprints import (
    EVENT_COLUMNS,
    LAKE_COLUMNS,
    REMEMBERED_COLUMNS,
    batch_hashes,
    expected_partition_rows,
    mix,
    texts,
)
from unisono.store.port import CLOCK_SKEW_MAX_MS

STRETCHES_MAX: Final = 4_096
"""Ranges of ids kept per file; a file with more gaps is described by the first of them. Files that another program
wrote may have any."""

TICKS: Final = 100
"""Points per file for the chart of the log's growth."""


def check_log_file(
    scope: Scope, part: DataFile | LogSlice, check: EventCheck, outcome: AuditOutcome
) -> tuple[Any, Any]:
    """Check a file of `log`, or a slice of one; returns the hashes of its event ids, and their committed ids."""
    id_hashes: list[Any] = [np.zeros(0, np.uint64)]

    def check_rows(rows: pa.RecordBatch) -> None:
        check.check(rows)
        ids = np.asarray(rows.column("committed_id"))
        hashed = batch_hashes(rows, LAKE_COLUMNS)
        id_hashes.append(np.stack([hashed["id"], ids.view("u8")]).ravel(order="F"))
        _sum_up(scope, outcome, rows, ids, hashed)

    if isinstance(part, DataFile):
        _check_log_file(scope, part, outcome, check_rows)
    else:
        if part.number == 0:
            _check_log_file(scope, part.file, outcome, lambda _: None)
        reported = FindingTally(scope.head)  # by the first slice
        columns = FILE_SCHEMAS[LOG].names
        for batch in readable(scope.storage, part.file, columns, part.number, part.count):
            check_rows(complete_rows(batch, reported))
    pairs = np.concatenate(id_hashes).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1].astype(np.int64)


def _check_log_file(
    scope: Scope, file: DataFile, outcome: AuditOutcome, check_rows: Callable[[pa.RecordBatch], None]
) -> None:
    tally, statistics = outcome.tally, FileStatistics()
    for batch in batches(scope, file, outcome, statistics):
        statistics.ids.append(np.asarray(batch.column("committed_id").drop_null()))
        rows = complete_rows(batch, tally)
        statistics.times.append(
            np.column_stack([rows.column("committed_id"), rows.column("status_updated_at")])
        )
        check_rows(rows)
    outcome.count("events", statistics.rows)
    ids = _joined(statistics.ids)
    if has_own_name(file):
        _check_order(file, ids, tally)
    for id in ids[ids > scope.head]:
        tally.add("head", f"it is in {file.path}, and the table ends at {scope.head}", int(id))
    stretches = _check_ids(ids, tally, STRETCHES_MAX if has_own_name(file) else len(ids))
    first, last = _check_times(statistics.times, tally, outcome)
    outcome.extents.append(FileContent(file.path, stretches, first, last))
    _check_statistics(file, statistics, ids, outcome)


def check_partition_file(scope: Scope, file: DataFile, outcome: AuditOutcome) -> None:
    """Check a file of `by_partition`."""
    tally, statistics = outcome.tally, FileStatistics()
    before: tuple[bytes, int] | None = None
    for batch in batches(scope, file, outcome, statistics):
        statistics.ids.append(np.asarray(batch.column("committed_id").drop_null()))
        rows = complete_rows(batch, tally, ("partition", *REQUIRED))
        if not rows.num_rows:
            continue
        ids = np.asarray(rows.column("committed_id"))
        names = rows.column("partition").cast(pa.binary()).dictionary_encode()
        before = _check_partition_order(file, names, ids, before, tally)
        _check_bucket(scope, file, names, ids, tally)
        statistics.names.append((_first_name(names), _last_name(names)))
        hashed = batch_hashes(rows, (*LAKE_COLUMNS, "partition"))
        within = (ids > 0) & (ids <= scope.placed_to)
        outcome.placed.add(ids[within], mix(ids, hashed)[within])
    outcome.count("places", statistics.rows)
    ids = _joined(statistics.ids)
    for id in ids[(ids > scope.places_head) | (ids < 1)]:
        tally.add("head", f"it is in {file.path}, and the table ends at {scope.places_head}", int(id))
    _check_statistics(file, statistics, ids, outcome)


def check_snapshot_file(scope: Scope, file: DataFile, outcome: AuditOutcome) -> None:
    """Check a file of `snapshots`: each state must match its hash. A replay comes later."""
    tally, statistics = outcome.tally, FileStatistics()
    before: tuple[bytes, int] | None = None
    for batch in batches(scope, file, outcome, statistics):
        rows = complete_rows(batch, tally, SNAPSHOT_SCHEMA.names)
        statistics.ids.append(np.asarray(batch.column("committed_id").drop_null()))
        if not rows.num_rows:
            continue
        ids = np.asarray(rows.column("committed_id"))
        names = rows.column("partition").cast(pa.binary()).dictionary_encode()
        _check_repeats(file, names, ids, before, tally)
        before = _check_partition_order(file, names, ids, before, tally)
        _check_bucket(scope, file, names, ids, tally)
        statistics.names.append((_first_name(names), _last_name(names)))
        columns = (
            ids.tolist(),
            texts(rows.column("partition")),
            texts(rows.column("state")),
            texts(rows.column("hash")),
        )
        for id, name, state, stored_hash in zip(*columns, strict=True):
            if hashlib.sha256(state).digest() != stored_hash:
                tally.add(
                    "snapshot", "the state is not the one its hash is of", id, name.decode(errors="replace")
                )
            if id > scope.head:
                tally.add(
                    "snapshot", f"it goes past the head {scope.head}", id, name.decode(errors="replace")
                )
    outcome.count("snapshots", statistics.rows)
    _check_statistics(file, statistics, _joined(statistics.ids), outcome)


def _sum_up(
    scope: Scope, outcome: AuditOutcome, rows: pa.RecordBatch, ids: Any, hashed: dict[str, Any]
) -> None:
    """Add the fingerprints that by_partition and the server's log must have."""
    if scope.store is not None:
        within = (ids > scope.store_since) & (ids <= scope.store_upto)
        outcome.copied.add(ids[within], mix(ids, {name: hashed[name] for name in EVENT_COLUMNS})[within])
        gone = (ids > 0) & (ids <= scope.store_since)
        if gone.any():
            outcome.left.add(ids[gone], mix(ids, {name: hashed[name] for name in REMEMBERED_COLUMNS})[gone])
    parents, expected = expected_partition_rows(rows, hashed)
    own = ids[parents]
    within = (own > 0) & (own <= scope.placed_to)
    outcome.expected.add(own[within], mix(own, expected)[within])


def _check_order(file: DataFile, ids: Any, tally: FindingTally) -> None:
    for place in np.flatnonzero(ids[1:] < ids[:-1]) + 1:
        tally.add("order", f"it comes after {ids[place - 1]} in {file.path}", int(ids[place]))


def _check_ids(ids: Any, tally: FindingTally, stretches_max: int) -> tuple[tuple[int, int], ...]:
    """The ids as ranges without gaps; duplicates are findings."""
    unique, counts = np.unique(ids, return_counts=True)
    for place in np.flatnonzero(counts > 1):
        tally.add("duplicate", f"it is there {counts[place]} times in one file", int(unique[place]))
    if not len(unique):
        return ()
    edges = np.flatnonzero(np.diff(unique) > 1)
    starts = unique[np.concatenate([[0], edges + 1])].tolist()
    ends = unique[np.concatenate([edges, [len(unique) - 1]])].tolist()
    if len(starts) > stretches_max:
        tally.count("gap", starts[stretches_max:])
        starts, ends = starts[:stretches_max], [*ends[: stretches_max - 1], ends[-1]]
    return tuple(zip(starts, ends, strict=True))


def _check_times(parts: list[Any], tally: FindingTally, outcome: AuditOutcome) -> tuple[int, int]:
    """Times in order of ids go back only where a clock was corrected, by more than clocks may differ."""
    rows = np.concatenate([np.zeros((0, 2), np.int64), *parts])
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    if not len(rows):
        return 0, 0
    ids, times = rows[:, 0], rows[:, 1]
    back = times[:-1] - times[1:]
    for place in np.flatnonzero((back > 0) & (back <= CLOCK_SKEW_MAX_MS)) + 1:
        tally.add(
            "time",
            f"{times[place]} is before {times[place - 1]}, the time of the event before it",
            int(ids[place]),
        )
    for place in np.unique(np.linspace(0, len(rows) - 1, TICKS).astype(int)):
        outcome.ticks.append(CommitTime(int(ids[place]), int(times[place])))
    return int(times[0]), int(times[-1])


def _check_partition_order(
    file: DataFile, names: Any, ids: Any, before: tuple[bytes, int] | None, tally: FindingTally
) -> tuple[bytes, int]:
    """Order by partition, then committed_id, through the whole file; duplicates are checked elsewhere."""
    values = names.dictionary.to_pylist()
    if not has_own_name(file):
        return values[np.asarray(names.indices)[-1]], int(ids[-1])
    ranks = np.empty(len(values), np.int64)
    ranks[sorted(range(len(values)), key=lambda place: values[place])] = np.arange(len(values))
    places = np.asarray(names.indices)
    keys = ranks[places]
    wrong = np.flatnonzero((keys[1:] < keys[:-1]) | ((keys[1:] == keys[:-1]) & (ids[1:] < ids[:-1]))) + 1
    first = (values[places[0]], int(ids[0]))
    if before is not None and first < before:
        wrong = np.concatenate([[0], wrong])
    for place in wrong:
        name = values[places[place]].decode(errors="replace")
        tally.add("order", f"its row is not in its place in {file.path}", int(ids[place]), name)
    return values[places[-1]], int(ids[-1])


def _check_repeats(
    file: DataFile, names: Any, ids: Any, before: tuple[bytes, int] | None, tally: FindingTally
) -> None:
    """A partition has one snapshot at an id; with two, readers could disagree."""
    values, places = names.dictionary.to_pylist(), np.asarray(names.indices)
    again = np.flatnonzero((places[1:] == places[:-1]) & (ids[1:] == ids[:-1])) + 1
    if before == (values[places[0]], int(ids[0])):
        again = np.concatenate([[0], again])
    for place in again:
        name = values[places[place]].decode(errors="replace")
        tally.add("snapshot", f"it is there more than once in {file.path}", int(ids[place]), name)


def _check_bucket(scope: Scope, file: DataFile, names: Any, ids: Any, tally: FindingTally) -> None:
    if file.bucket == UNBUCKETED:
        return
    values = [value.decode(errors="replace") for value in names.dictionary.to_pylist()]
    section = section_of(file)
    strange = np.array(
        [
            bucket_of(name, scope.buckets) != file.bucket or not (section is None or section.holds(name))
            for name in values
        ]
    )
    places = np.asarray(names.indices)
    for place in np.flatnonzero(strange[places]):
        name = values[places[place]]
        says = f"it is in bucket {file.bucket} and belongs to {bucket_of(name, scope.buckets)}"
        if section is not None:
            says = (
                f"it is in section {section.number} of {section.count} and belongs to "
                f"{bucket_of(name, section.count)}"
            )
        tally.add("bucket", says, int(ids[place]), name)


def _check_statistics(file: DataFile, statistics: FileStatistics, ids: Any, outcome: AuditOutcome) -> None:
    """Compare the table's statistics of the file with its content."""
    if len(ids) and (int(ids.min()), int(ids.max())) != (file.first_id, file.last_id):
        outcome.reaches[file.path] = (int(ids.min()), int(ids.max()))
    if not statistics.complete:
        return
    checks: list[tuple[str, Any, Any]] = [("rows", file.rows, statistics.rows)]
    if len(ids):
        checks.append(("first committed_id", file.first_id, int(ids.min())))
        checks.append(("last committed_id", file.last_id, int(ids.max())))
    if statistics.names and has_own_name(file):  # other programs may cut long names short
        least, greatest = min(low for low, _ in statistics.names), max(high for _, high in statistics.names)
        checks.append(("first partition", as_bytes(file.first_partition), least))
        checks.append(("last partition", as_bytes(file.last_partition), greatest))
    if has_own_name(file):
        for what, both, name in (
            ("time", file.times, "status_updated_at"),
            ("client", file.clients, "client_id"),
        ):
            if both is not None and name in statistics.bounds:
                low, high = statistics.bounds[name]
                checks += [
                    (f"first {what}", as_bytes(both[0]), low),
                    (f"last {what}", as_bytes(both[1]), high),
                ]
    for what, stated, found in checks:
        if stated != found:
            outcome.tally.add(
                "statistics",
                f"the table {file.table} says of {file.path}: {what} {value_text(stated)}, "
                f"and it is {value_text(found)}",
                int(ids.min()) if len(ids) else file.first_id,
            )


def _joined(parts: list[Any]) -> Any:
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _first_name(names: Any) -> bytes:
    value: bytes = min(names.dictionary.to_pylist())
    return value


def _last_name(names: Any) -> bytes:
    value: bytes = max(names.dictionary.to_pylist())
    return value
