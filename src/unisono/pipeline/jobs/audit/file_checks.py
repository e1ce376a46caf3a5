"""One data file of the lake: can it be read, is it sorted, are the statistics true, is each row in its bucket?

The rows of `log` are looked at event by event on the way, so that one pass serves all questions about them.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np
import pyarrow as pa

from unisono.lake.columns import SNAPSHOT_SCHEMA, bucket_of
from unisono.lake.write import UNBUCKETED, DataFile
from unisono.pipeline.jobs.audit.event_checks import REQUIRED, EventCheck, whole_rows
from unisono.pipeline.jobs.audit.findings import FindingTally
from unisono.pipeline.jobs.audit.read_file import FileStatistics, as_bytes, batches, shown
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
"""Of one file; one that has more gaps than this is described by the first of them."""

TICKS: Final = 100
"""Points of one file at which the time is noted."""


def look_at_log(scope: Scope, file: DataFile, check: EventCheck, outcome: AuditOutcome) -> tuple[Any, Any]:
    """A file of `log`; the hashes of its event ids, and their committed ids."""
    tally, seen = outcome.tally, FileStatistics()
    id_hashes: list[Any] = [np.zeros(0, np.uint64)]
    for batch in batches(scope, file, outcome, seen):
        seen.ids.append(np.asarray(batch.column("committed_id").drop_null()))
        rows = whole_rows(batch, tally)
        seen.times.append(np.column_stack([rows.column("committed_id"), rows.column("status_updated_at")]))
        check.look(rows)
        ids = np.asarray(rows.column("committed_id"))
        hashed = batch_hashes(rows, LAKE_COLUMNS)
        id_hashes.append(np.stack([hashed["id"], ids.view("u8")]).ravel(order="F"))
        _sum_up(scope, outcome, rows, ids, hashed)
    outcome.count("events", seen.rows)
    ids = _joined(seen.ids)
    _look_at_order(file, ids, tally)
    for id in ids[ids > scope.head]:
        tally.add("head", f"it is in {file.path}, and the table ends at {scope.head}", int(id))
    stretches = _look_at_ids(ids, tally)
    first, last = _look_at_times(seen.times, tally, outcome)
    outcome.extents.append(FileContent(file.path, stretches, first, last))
    _look_at_statistics(file, seen, ids, outcome)
    pairs = np.concatenate(id_hashes).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1].astype(np.int64)


def look_at_places(scope: Scope, file: DataFile, outcome: AuditOutcome) -> None:
    """A file of `by_partition`."""
    tally, seen = outcome.tally, FileStatistics()
    before: tuple[bytes, int] | None = None
    for batch in batches(scope, file, outcome, seen):
        seen.ids.append(np.asarray(batch.column("committed_id").drop_null()))
        rows = whole_rows(batch, tally, ("partition", *REQUIRED))
        if not rows.num_rows:
            continue
        ids = np.asarray(rows.column("committed_id"))
        names = rows.column("partition").cast(pa.binary()).dictionary_encode()
        before = _look_at_places_order(file, names, ids, before, tally)
        _look_at_bucket(scope, file, names, ids, tally)
        seen.names.append((_least(names), _greatest(names)))
        hashed = batch_hashes(rows, (*LAKE_COLUMNS, "partition"))
        within = (ids > 0) & (ids <= scope.placed_to)
        outcome.placed.add(ids[within], mix(ids, hashed)[within])
    outcome.count("places", seen.rows)
    ids = _joined(seen.ids)
    for id in ids[(ids > scope.places_head) | (ids < 1)]:
        tally.add("head", f"it is in {file.path}, and the table ends at {scope.places_head}", int(id))
    _look_at_statistics(file, seen, ids, outcome)


def look_at_snapshots(scope: Scope, file: DataFile, outcome: AuditOutcome) -> None:
    """A file of `snapshots`: whether each state is the one that was written. What it should be is asked later."""
    tally, seen = outcome.tally, FileStatistics()
    before: tuple[bytes, int] | None = None
    for batch in batches(scope, file, outcome, seen):
        rows = whole_rows(batch, tally, SNAPSHOT_SCHEMA.names)
        seen.ids.append(np.asarray(batch.column("committed_id").drop_null()))
        if not rows.num_rows:
            continue
        ids = np.asarray(rows.column("committed_id"))
        names = rows.column("partition").cast(pa.binary()).dictionary_encode()
        _look_at_repeats(file, names, ids, before, tally)
        before = _look_at_places_order(file, names, ids, before, tally)
        _look_at_bucket(scope, file, names, ids, tally)
        seen.names.append((_least(names), _greatest(names)))
        columns = (
            ids.tolist(),
            texts(rows.column("partition")),
            texts(rows.column("state")),
            texts(rows.column("hash")),
        )
        for id, name, state, sealed in zip(*columns, strict=True):
            if hashlib.sha256(state).digest() != sealed:
                tally.add(
                    "snapshot", "the state is not the one its hash is of", id, name.decode(errors="replace")
                )
            if id > scope.head:
                tally.add(
                    "snapshot", f"it goes past the head {scope.head}", id, name.decode(errors="replace")
                )
    outcome.count("snapshots", seen.rows)
    _look_at_statistics(file, seen, _joined(seen.ids), outcome)


def _sum_up(
    scope: Scope, outcome: AuditOutcome, rows: pa.RecordBatch, ids: Any, hashed: dict[str, Any]
) -> None:
    """What by_partition and the server's log must have, if they are the same."""
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


def _look_at_order(file: DataFile, ids: Any, tally: FindingTally) -> None:
    for place in np.flatnonzero(ids[1:] < ids[:-1]) + 1:
        tally.add("order", f"it comes after {ids[place - 1]} in {file.path}", int(ids[place]))


def _look_at_ids(ids: Any, tally: FindingTally) -> tuple[tuple[int, int], ...]:
    """The ids as stretches without gaps; those that are there twice are findings."""
    unique, counts = np.unique(ids, return_counts=True)
    for place in np.flatnonzero(counts > 1):
        tally.add("duplicate", f"it is there {counts[place]} times in one file", int(unique[place]))
    if not len(unique):
        return ()
    edges = np.flatnonzero(np.diff(unique) > 1)
    starts = unique[np.concatenate([[0], edges + 1])].tolist()
    ends = unique[np.concatenate([edges, [len(unique) - 1]])].tolist()
    if len(starts) > STRETCHES_MAX:
        tally.count("gap", starts[STRETCHES_MAX:])
        starts, ends = starts[:STRETCHES_MAX], [*ends[: STRETCHES_MAX - 1], ends[-1]]
    return tuple(zip(starts, ends, strict=True))


def _look_at_times(parts: list[Any], tally: FindingTally, outcome: AuditOutcome) -> tuple[int, int]:
    """In the order of ids, times go back only where a clock was set right: further than clocks may differ."""
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


def _look_at_places_order(
    file: DataFile, names: Any, ids: Any, before: tuple[bytes, int] | None, tally: FindingTally
) -> tuple[bytes, int]:
    """By partition, then by committed_id, through the whole file; a row that is there twice is not its question."""
    values = names.dictionary.to_pylist()
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


def _look_at_repeats(
    file: DataFile, names: Any, ids: Any, before: tuple[bytes, int] | None, tally: FindingTally
) -> None:
    """A partition has one snapshot at an id: of two a reader would take the one or the other."""
    values, places = names.dictionary.to_pylist(), np.asarray(names.indices)
    again = np.flatnonzero((places[1:] == places[:-1]) & (ids[1:] == ids[:-1])) + 1
    if before == (values[places[0]], int(ids[0])):
        again = np.concatenate([[0], again])
    for place in again:
        name = values[places[place]].decode(errors="replace")
        tally.add("snapshot", f"it is there more than once in {file.path}", int(ids[place]), name)


def _look_at_bucket(scope: Scope, file: DataFile, names: Any, ids: Any, tally: FindingTally) -> None:
    if file.bucket == UNBUCKETED:
        return
    values = [value.decode(errors="replace") for value in names.dictionary.to_pylist()]
    strange = np.array([bucket_of(name, scope.buckets) != file.bucket for name in values])
    places = np.asarray(names.indices)
    for place in np.flatnonzero(strange[places]):
        name = values[places[place]]
        tally.add(
            "bucket",
            f"it is in bucket {file.bucket} and belongs to {bucket_of(name, scope.buckets)}",
            int(ids[place]),
            name,
        )


def _look_at_statistics(file: DataFile, seen: FileStatistics, ids: Any, outcome: AuditOutcome) -> None:
    """What the table's log says of the file, against what is in it."""
    if len(ids) and (int(ids.min()), int(ids.max())) != (file.first_id, file.last_id):
        outcome.reaches[file.path] = (int(ids.min()), int(ids.max()))
    if not seen.complete:
        return
    told: list[tuple[str, Any, Any]] = [("rows", file.rows, seen.rows)]
    if len(ids):
        told.append(("first committed_id", file.first_id, int(ids.min())))
        told.append(("last committed_id", file.last_id, int(ids.max())))
    if seen.names:
        least, greatest = min(low for low, _ in seen.names), max(high for _, high in seen.names)
        told.append(("first partition", as_bytes(file.first_partition), least))
        told.append(("last partition", as_bytes(file.last_partition), greatest))
    for what, said, found in told:
        if said != found:
            outcome.tally.add(
                "statistics",
                f"the table {file.table} says of {file.path}: {what} {shown(said)}, and it is {shown(found)}",
                int(ids.min()) if len(ids) else file.first_id,
            )


def _joined(parts: list[Any]) -> Any:
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _least(names: Any) -> bytes:
    value: bytes = min(names.dictionary.to_pylist())
    return value


def _greatest(names: Any) -> bytes:
    value: bytes = max(names.dictionary.to_pylist())
    return value
