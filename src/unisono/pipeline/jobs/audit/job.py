"""Audits the whole history in the lake. One job reads every file once; differences are read again in detail.

First pass: tasks read every file of `log`, large ones in slices, with all its events, every file of `by_partition`,
and the server's log where one is given. They exchange the ids of all events to find duplicates. Then, only where sums
differ, rows are compared one by one. Snapshots come last.

No finding ends an audit. It reads one version of each table, writes nothing, and may run beside everything except a
vacuum of files younger than itself.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from unisono.lake.errors import LakeUnusable
from unisono.lake.file_checks import has_own_name
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, LOG, SNAPSHOTS
from unisono.lake.table import Table
from unisono.lake.write import DataFile
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.audit.balance import LogSlice, Part, balance, divide
from unisono.pipeline.jobs.audit.compare_copies import (
    Range,
    StoreRange,
    compare_places,
    compare_store,
    plan_row_comparison,
    store_ranges,
    sum_store,
)
from unisono.pipeline.jobs.audit.duplicate_ids import (
    SharedIds,
    exchanges,
    find_shared_ids,
    look_up,
    lookups,
    report_shared_ids,
    split,
)
from unisono.pipeline.jobs.audit.event_checks import EventCheck
from unisono.pipeline.jobs.audit.file_checks import check_log_file, check_partition_file, check_snapshot_file
from unisono.pipeline.jobs.audit.findings import FindingTally
from unisono.pipeline.jobs.audit.id_continuity import check_continuity
from unisono.pipeline.jobs.audit.pruned_ids import BLOCKS_MAX as PRUNED_BLOCKS_MAX
from unisono.pipeline.jobs.audit.pruned_ids import PrunedIdMemory, compare_memory, sum_memory
from unisono.pipeline.jobs.audit.read_file import has_statistics
from unisono.pipeline.jobs.audit.replay_tasks import replay_snapshots
from unisono.pipeline.jobs.audit.result import AuditReport, AuditStep, build_report
from unisono.pipeline.jobs.audit.tasks import AuditOutcome, Scope
from unisono.pipeline.jobs.audit.tombstones import check_tombstones, recorded_erasures
from unisono.pipeline.open_log import extent, gc_paused, readers_at_once
from unisono.pipeline.progress import Notify, silent
from unisono.pipeline.spark.executors import parallelism, rows_of, run_on_executors, task_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLE: Final = 100
"""Partitions whose snapshots are replayed by default."""

OUTCOMES_PER_MERGE: Final = 8
MERGES_MAX: Final = 32
"""Tasks that merge the outcomes of others, so many each; the driver merges what they made."""

_CHECKED: Final = pa.schema([("home", pa.int32()), ("content", pa.binary())])
_CHECKED_DDL: Final = "home INT, content BINARY"


class AuditOptions(msgspec.Struct, frozen=True):
    """How much to check. `sample`: partitions whose snapshots are replayed; None for all.

    `model`: also judge every event by this model, which gives warnings only.
    """

    sample: int | None = SAMPLE
    model: ShippedModel | None = None

    def __post_init__(self) -> None:
        if self.sample is not None and (type(self.sample) is not int or self.sample < 0):
            raise PipelineError(f"sample must be a whole number from 0 on, not {self.sample!r}")


def audit(
    spark: SparkSession,
    lake: Lake,
    store: str | None = None,
    options: AuditOptions | None = None,
    notify: Notify = silent,
) -> AuditReport:
    """Run all checks; the report has the checks and the findings."""
    began, options = time.monotonic(), options or AuditOptions()
    # In this order: events of a snapshot are in `log`, and events of `log` are in `by_partition`.
    states, log, places = lake.find(SNAPSHOTS), lake.table(LOG), lake.table(BY_PARTITION)
    tally = FindingTally(log.head)
    files = [
        file for table in (log, places, states) if table is not None for file in list_files(table, tally)
    ]
    scope = make_scope(lake, log, places, store, options, tally)
    notify(f"auditing {scope.head} events in {len(files)} files")
    outcome, shared = first_pass(spark, scope, files)
    outcome.tally.merge(tally)
    first = time.monotonic()
    notify(f"read {outcome.counts.get('events', 0)} events in {first - began:.1f} s")
    check_continuity(scope, outcome, files)
    check_tombstones(
        outcome.erased(), recorded_erasures(lake.storage, scope.head, outcome.tally), outcome.tally
    )
    _check_ids(spark, scope, files, shared, outcome)
    _compare(spark, scope, files, outcome, notify)
    checked = _steps(scope, outcome, first - began)
    ordered = _in_order(files, [table for table in (places, states) if table is not None])
    checked += replay_snapshots(spark, scope, ordered, states, options.sample, outcome, notify)
    return build_report(lake.storage.location, scope, outcome, checked, time.monotonic() - began)


def make_scope(
    lake: Lake, log: Table, places: Table, store: str | None, options: AuditOptions, tally: FindingTally
) -> Scope:
    head, places_head = log.head, places.head
    if places_head < head:
        tally.add("head", f"by_partition ends at {places_head} and log at {head}", places_head + 1)
    scope = Scope(
        lake.storage,
        head,
        min(head, places_head),
        places_head,
        places.description().buckets,
        model=options.model,
    )
    if store is None:
        return scope
    log_extent = extent(store)
    if log_extent.head < head:
        message = f"the lake ends at {head} and the log at {log_extent.head}"
        message += ": the log has lost events, or is another one"
        tally.add("copy", message, log_extent.head + 1)
    if log_extent.pruned_to > max(head, lake.head()):  # a job may have exported and pruned since
        message = (
            f"events {head + 1} to {log_extent.pruned_to} have left the log, and the lake ends at {head}"
        )
        tally.add("pruned", message, head + 1)
    upto = min(head, log_extent.head)
    return msgspec.structs.replace(
        scope,
        store=store,
        store_since=min(log_extent.pruned_to, upto),
        store_upto=upto,
        store_head=log_extent.head,
    )


def list_files(table: Table, tally: FindingTally) -> list[DataFile]:
    """The files of a table; missing statistics are a finding and read as 0."""
    files = table.listed_files()
    for file in files:
        if not has_statistics(file):
            tally.add("statistics", f"the table {table.name} has no statistics of {file.path}", file.first_id)
        elif not has_own_name(file):
            tally.add("foreign", f"{table.name}/{file.path} has {file.rows} rows", file.first_id)
    present = sum(file.rows for file in files)
    if table.rows is not None and present != table.rows:
        message = f"the table {table.name} names files with {present} rows and {table.rows} were committed"
        tally.add("head", message, table.head or None)
    return files


def _in_order(files: Sequence[DataFile], tables: Sequence[Table]) -> list[DataFile]:
    """The files to replay from: where another program rearranged a table, those of the version before."""
    chosen = list(files)
    for table in tables:
        if table.foreign_files():
            with suppress(LakeUnusable):
                own = table.readable_files()
                chosen = [file for file in chosen if file.table != table.name] + own
    return chosen


def first_pass(
    spark: SparkSession, scope: Scope, files: Sequence[DataFile]
) -> tuple[AuditOutcome, list[SharedIds]]:
    """Read every file and the server's log once; the outcome, and ids that may be shared."""
    parts = first_parts(scope, files)
    if not parts:
        return AuditOutcome(scope), []
    cores = parallelism(spark)
    readers_max = None if scope.store is None else readers_at_once(scope.store)
    slices = [
        *balance([*divide([part for part in parts if isinstance(part, DataFile)], cores)], cores),
        *balance([part for part in parts if not isinstance(part, DataFile)], cores, readers_max),
    ]
    exchange = exchanges(scope.head, cores)
    merges = min(MERGES_MAX, -(-len(slices) // OUTCOMES_PER_MERGE))
    numbered = list(enumerate(slices))
    checked = task_frame(spark, numbered, partial(_checked_rows, scope, exchange, merges), _CHECKED_DDL)
    met = checked.repartitionById(merges + exchange, "home").mapInArrow(
        partial(_met, scope, merges), "found BINARY"
    )
    outcome, shared = AuditOutcome(scope), []
    for row in rows_of(met, "jobs.audit.job.first_pass"):
        found = pickle.loads(row.found)  # noqa: S301 (our own)
        if isinstance(found, SharedIds):
            shared.append(found)
        else:
            outcome.merge(found)
    return outcome, shared


def first_parts(scope: Scope, files: Sequence[DataFile]) -> list[Part]:
    """All parts that are read once."""
    parts: list[Part] = [*files, *(store_ranges(scope) if scope.store is not None else ())]
    return parts if scope.store is None else [*parts, PrunedIdMemory(scope.store_since)]


def check_parts(scope: Scope, exchange: int, parts: Sequence[Part]) -> Iterator[tuple[int, Any]]:
    """On an executor: check some parts. The outcome goes to part 0, ids go to the others by their hash."""
    outcome = AuditOutcome(scope)
    check = EventCheck(outcome.tally, None if scope.model is None else scope.model.load())
    with gc_paused():
        for part in parts:
            before = outcome.tally.errors
            if isinstance(part, StoreRange):
                sum_store(scope, part, outcome)
            elif isinstance(part, PrunedIdMemory):
                sum_memory(scope, outcome)
            elif isinstance(part, LogSlice) or part.table == LOG:
                hashes, ids = check_log_file(scope, part, check, outcome)
                yield from ((1 + home, blob) for home, blob in split(hashes, ids, exchange))
            elif part.table == BY_PARTITION:
                check_partition_file(scope, part, outcome)
            else:
                check_snapshot_file(scope, part, outcome)
            if isinstance(part, DataFile | LogSlice) and outcome.tally.errors > before:
                outcome.at_fault.add((part.file if isinstance(part, LogSlice) else part).path)
    outcome.take(check)
    yield 0, outcome


def _checked_rows(
    scope: Scope, exchange: int, merges: int, task: tuple[int, Sequence[Part]]
) -> Iterator[pa.RecordBatch]:
    """On an executor: rows for the exchange. Its first `merges` parts take outcomes, the others ids."""
    number, parts = task
    for home, found in check_parts(scope, exchange, parts):
        place, content = (merges - 1 + home, found) if home else (number % merges, pickle.dumps(found))
        columns = [pa.array([place], pa.int32()), pa.array([content], pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, schema=_CHECKED)


def _met(scope: Scope, merges: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On an executor: one part of the exchange, whose rows all have the same home."""
    rows = ((home, content) for batch in batches for home, content in _pairs(batch))
    first = next(rows, None)
    if first is not None:
        home = max(0, first[0] - merges + 1)
        found = merge_outcomes(scope, home, (content for _, content in chain([first], rows)))
        yield pa.RecordBatch.from_pydict({"found": pa.array([pickle.dumps(found)], pa.binary())})


def _pairs(batch: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
    return zip(batch.column("home").to_pylist(), batch.column("content").to_pylist(), strict=True)


def merge_outcomes(scope: Scope, home: int, contents: Iterable[bytes]) -> AuditOutcome | SharedIds:
    """Merge all outcomes (home 0), or find shared ids in one part of the exchange."""
    if home:
        return find_shared_ids(contents)
    whole = AuditOutcome(scope)
    for content in contents:
        whole.merge(pickle.loads(content))  # noqa: S301 (pickled by our executors)
    return whole


def _check_ids(
    spark: SparkSession,
    scope: Scope,
    files: Sequence[DataFile],
    shared: Sequence[SharedIds],
    outcome: AuditOutcome,
) -> None:
    groups = list(chain.from_iterable(part.groups for part in shared))
    log = [file for file in _reaching(files, outcome) if file.table == LOG]
    if groups:
        tasks = lookups(scope.storage, log, groups)
        found = chain.from_iterable(run_on_executors(spark, tasks, look_up))
        report_shared_ids(groups, found, outcome.tally)
    if more := sum(part.more for part in shared):
        outcome.tally.count("id", [scope.head] * more)


def _compare(
    spark: SparkSession, scope: Scope, files: Sequence[DataFile], outcome: AuditOutcome, notify: Notify
) -> None:
    """Compare blocks in which copies differ, row by row."""
    reaching = _reaching(files, outcome)
    log = [file for file in reaching if file.table == LOG]
    ranges = outcome.expected.differing(outcome.placed, 0, scope.placed_to)
    _compare_rows(spark, partial(compare_places, scope), ranges, reaching, outcome, "by_partition", notify)
    if scope.store is not None:
        # Events pruned during the audit are in the lake's sums and not in the log's.
        since = max(scope.store_since, outcome.store_pruned_to)
        ranges = outcome.copied.differing(outcome.stored, since, scope.store_upto)
        at_once = readers_at_once(scope.store)
        _compare_rows(
            spark, partial(compare_store, scope), ranges, log, outcome, "copy", notify, at_once=at_once
        )
        known = not outcome.memory_unreadable
        ranges = outcome.left.differing(outcome.remembered, 0, scope.store_since) if known else []
        blocks_max = PRUNED_BLOCKS_MAX
        _compare_rows(
            spark,
            partial(compare_memory, scope),
            ranges,
            log,
            outcome,
            "pruned",
            notify,
            at_once=at_once,
            blocks_max=blocks_max,
            blocks_per_task=blocks_max,
        )


def _compare_rows(
    spark: SparkSession,
    compare: Callable[[Any], FindingTally],
    ranges: Sequence[Range],
    files: Sequence[DataFile],
    outcome: AuditOutcome,
    kind: str,
    notify: Notify,
    *,
    at_once: int | None = None,
    **bounds: int,
) -> None:
    tasks, rest = plan_row_comparison(ranges, files, outcome.unreadable, **bounds)
    if tasks:
        notify(f"{kind}: comparing row by row within events {ranges[0][0] + 1} to {ranges[-1][1]}")
        for tally in run_on_executors(spark, tasks, compare, at_once=at_once):
            outcome.tally.merge(tally)
    for low, high in rest:
        outcome.tally.add(
            kind, f"events {low + 1} to {high} differ and were not compared one by one", low + 1
        )


def _reaching(files: Sequence[DataFile], outcome: AuditOutcome) -> list[DataFile]:
    """The files with their actual first and last ids."""
    return [
        file
        if (reach := outcome.reaches.get(file.path)) is None
        else msgspec.structs.replace(file, first_id=reach[0], last_id=reach[1])
        for file in files
    ]


def _steps(scope: Scope, outcome: AuditOutcome, seconds: float) -> list[AuditStep]:
    counts = outcome.counts
    checked = [
        AuditStep(
            "events by themselves, their ids and their order", counts.get("events", 0), "events", seconds
        ),
        AuditStep("rows of by_partition against log", counts.get("places", 0), "rows"),
        AuditStep("hashes recomputed", counts.get("hashed", 0), "events"),
    ]
    if scope.store is not None:
        ahead = scope.store_head > scope.head
        note = f"the log goes on to {scope.store_head}, which the lake does not have" if ahead else ""
        checked.append(AuditStep("the log against the lake", counts.get("stored", 0), "events", note=note))
    if scope.store_since:
        what = "what the log remembers of pruned events, against the lake"
        checked.append(AuditStep(what, counts.get("remembered", 0), "events"))
    if counts.get("snapshots"):
        checked.append(AuditStep("snapshots against their hashes", counts["snapshots"], "snapshots"))
    return checked
