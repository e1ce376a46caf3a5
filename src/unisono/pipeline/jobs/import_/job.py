"""Runs one import: read, decide, load. Killed anywhere and run again, it continues.

Reading does not use the log. Deciding judges rows against the log's current head. Loading requires that the log has
not changed since; if other clients committed to partitions of the import, everything is decided again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow.parquet as pq

from unisono.display import hide_credentials
from unisono.pipeline.clock import now_ms
from unisono.pipeline.errors import Mismatch, NoSuchStore, PipelineError
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.import_ import insieme_file as insieme
from unisono.pipeline.jobs.import_ import json_lines as jsonl
from unisono.pipeline.jobs.import_ import prepare as preparing
from unisono.pipeline.jobs.import_ import rejects_table as rejects
from unisono.pipeline.jobs.import_ import tabular
from unisono.pipeline.jobs.import_.large_texts import LargeTexts
from unisono.pipeline.jobs.import_.read_split import ReadTask, Summary, count, number_of, run_task
from unisono.pipeline.jobs.import_.result import ImportPreparation, ImportReport, LoadSummary
from unisono.pipeline.jobs.import_.sources import (
    INSIEME,
    JSONL,
    PARQUET,
    SPLIT_BYTES,
    SPLIT_ROWS,
    FieldMapping,
    SourceFile,
    Split,
    unchanged,
)
from unisono.pipeline.jobs.import_.staging import DECIDED, READ, ImportProgress, ImportRequest, Staging
from unisono.pipeline.open_log import extent, gc_paused, open_reader, sqlite_directory
from unisono.pipeline.progress import Notify
from unisono.pipeline.spark.cluster import require_visible
from unisono.pipeline.spark.executors import run_on_executors
from unisono.store.bulk_load import GROUP_ROWS_MAX, Concerns, Loader, LogMovedOn, groups, open_log
from unisono.store.bulk_load import UnnumberedEvent as PreparedRow
from unisono.store.port import CommitLog, LogReader, Record, StoreUnusable
from unisono.store.sqlite.files import LOG_FILE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOVED_MAX: Final = 3
"""How often everything is decided again because other clients wrote to the log, before giving up."""

READ_ROWS: Final = 2_000
"""Staged rows in memory as Python values at a time."""


class ImportPlan(msgspec.Struct, frozen=True):
    """The options of an import. `full`: events are judged against the states, not by their shape only."""

    store: str
    sources: tuple[SourceFile, ...]
    staging: Path
    rejects: str
    mapped: FieldMapping = FieldMapping()
    order: str = "keep"
    full: bool = True
    model: ShippedModel = ShippedModel.open()
    client_id: str = "import"
    dry_run: bool = False
    split_bytes: int = SPLIT_BYTES
    split_rows: int = SPLIT_ROWS
    group_rows: int = GROUP_ROWS_MAX

    @property
    def request(self) -> ImportRequest:
        return ImportRequest(
            hide_credentials(self.store),
            tuple(source.identity() for source in self.sources),
            self.mapped.names,
            self.order,
            self.full,
            self.model.digest,
            self.client_id,
        )


def run(plan: ImportPlan, session: Callable[[], SparkSession], notify: Notify) -> ImportReport:
    """Run or continue an import. `session` starts Spark, and is called only when needed."""
    began = time.monotonic()
    rejects.check_place(plan.rejects)
    _require_files(plan)
    staging = Staging(plan.staging, plan.request.key)
    with staging.locked(), ExitStack() as stack:
        log = None if plan.dry_run else stack.enter_context(closing(_open(plan.store)))
        manifest = staging.manifest(now_ms())
        if manifest.stage:
            notify(f"continuing import {manifest.key}, stage: {manifest.stage}")
        work = _Work(plan, staging, manifest, session, notify)
        loaded: LoadSummary | None = None
        if log is None:
            work.prepare_only()
        else:
            loaded = work.load(log)
        report = work.report(loaded, time.monotonic() - began)
        if loaded is not None:
            staging.remove()
        return report


def _open(store: str) -> CommitLog:
    try:
        return open_log(store)
    except StoreUnusable as error:
        raise NoSuchStore(str(error)) from error


def _name(log: LogReader) -> str:
    identity = log.identity()
    return f"{identity.log_id}.{identity.log_epoch}"


def _require_files(plan: ImportPlan) -> None:
    if not plan.sources:
        raise PipelineError("no files to import")
    for source in plan.sources:
        if source.format not in (JSONL, INSIEME):
            tabular.require_columns(source, plan.mapped)


class _Work:
    """One run on one staging directory."""

    def __init__(
        self,
        plan: ImportPlan,
        staging: Staging,
        manifest: ImportProgress,
        session: Callable[[], SparkSession],
        notify: Notify,
    ) -> None:
        self._plan = plan
        self._staging = staging
        self._manifest = manifest
        self._session = session
        self._notify = notify

    def prepare_only(self) -> None:
        """A dry run: everything except loading; also beside a running server."""
        directory = sqlite_directory(self._plan.store)
        empty = directory is not None and not (directory / LOG_FILE).exists()
        base, log, last_ms = (0, "", 0) if empty else self._end_of_log()
        if self._manifest.stage == DECIDED and self._manifest.base != base:
            self._discard_decisions()
        self._discard_those_of_another(log, base)
        self._decide(base, log, last_ms)

    def load(self, log: CommitLog) -> LoadSummary:
        """Decide and load what is left."""
        identity = _name(log)
        self._discard_those_of_another(identity, log.head())
        for _ in range(MOVED_MAX):
            self._decide(log.head(), identity, log.last_status_updated_at())
            if self._manifest.log != identity:  # judged with an empty log, or before there was one
                self._manifest.log = identity
                self._staging.keep(self._manifest)
            try:
                return self._load(log)
            except LogMovedOn as moved:
                self._notify(f"the log changed since the rows were judged ({moved}): judging again")
                self._discard_decisions()
        raise Mismatch(
            "other clients keep writing to partitions of this import, so its rows are judged again each time: "
            "stop them, and run this again"
        )

    def report(self, loaded: LoadSummary | None, seconds: float) -> ImportReport:
        plan, manifest = self._plan, self._manifest
        return ImportReport(
            manifest.key,
            hide_credentials(plan.store),
            plan.order,
            f"{plan.model.version} ({plan.model.digest[:12]})" if plan.model.files else plan.model.digest,
            "full" if plan.full else "shape",
            manifest.base,
            plan.rejects,
            msgspec.json.decode(manifest.summary, type=ImportPreparation),
            loaded,
            seconds,
            None if loaded is not None else str(self._staging.folder),
        )

    # -- reading and deciding ------------------------------------------------------------------------------

    def _discard_decisions(self) -> None:
        self._manifest.stage = READ
        self._staging.keep(self._manifest)
        self._staging.clear("loaded.json", "staged", "decided", "repeats", "times")

    def _discard_those_of_another(self, log: str, head: int) -> None:
        """Rows that another log had, or this one before it was restored, are known no more."""
        manifest = self._manifest
        if manifest.stage != DECIDED:
            return
        certain = self._staging.loaded() if self._plan.full else 0
        if ((manifest.base or certain) and manifest.log != log) or head < manifest.base + certain:
            self._notify("the rows were judged against another log: judging again")
            self._discard_decisions()

    def _end_of_log(self) -> tuple[int, str, int]:
        """Where the log ends, which one it is, and the time of its last event."""
        head = extent(self._plan.store).head
        with closing(open_reader(self._plan.store)) as reader:
            return head, _name(reader), reader.last_status_updated_at()

    def _decide(self, base: int, log: str, last_ms: int) -> None:
        if self._manifest.stage == DECIDED:
            if self._manifest.rejects == self._plan.rejects:
                return
            self._discard_decisions()  # a dry run wrote the rejected rows elsewhere
        began = time.monotonic()
        spark = self._session()
        if base:
            require_visible(spark, self._plan.store)
        summaries = self._read(spark)
        self._manifest.base, self._manifest.log = base, log
        first = [summary.first_ms for summary in summaries if summary.first_ms is not None]
        self._manifest.first_ms = min(first, default=self._manifest.began_ms)
        prepared = preparing.prepare(spark, self._plan, self._staging, self._manifest, summaries, last_ms)
        prepared.seconds = time.monotonic() - began
        self._manifest.accepted = prepared.totals.accepted
        self._manifest.rejects = self._plan.rejects
        self._manifest.summary = msgspec.Raw(msgspec.json.encode(prepared))
        self._manifest.stage = DECIDED
        self._staging.keep(self._manifest)
        total = prepared.totals
        self._notify(f"judged {total.rows} rows: {total.accepted} to load, {total.rejected} rejected")

    def _read(self, spark: SparkSession) -> list[Summary]:
        folder = self._staging.path("rows")
        folder.mkdir(exist_ok=True)
        splits = self._splits(spark)
        tasks = [
            ReadTask(split, number, str(folder), self._plan.mapped, self._plan.model, self._plan.client_id)
            for number, split in enumerate(splits)
        ]
        if not tasks:
            raise PipelineError("the files have no rows")
        summaries: list[Summary] = run_on_executors(spark, tasks, run_task)
        for task in tasks:
            if not (folder / f"{task.name}.json").exists():
                raise Mismatch(
                    f"executors wrote to {folder}, and the driver does not see it: --staging must be shared storage"
                )
        if self._manifest.stage != READ:
            self._require_unchanged()
            self._manifest.stage = READ
            self._staging.keep(self._manifest)
        self._notify(
            f"read {sum(summary.rows for summary in summaries)} rows from {len(self._plan.sources)} files"
        )
        return summaries

    def _require_unchanged(self) -> None:
        """Refuse a file that changed while it was read: its rows would be incomplete or mixed."""
        for source in self._plan.sources:
            if source.format != INSIEME and not unchanged(source):
                self._staging.remove()
                raise PipelineError(
                    f"{source.path} was changed while it was read: run this again when nothing writes to it"
                )

    def _splits(self, spark: SparkSession) -> list[Split]:
        """Splits depend on the files, not on the number of cores: a later run gets the same ones."""
        plan = self._plan
        splits: list[Split] = []
        for file, source in enumerate(plan.sources):
            if source.format == JSONL:
                splits += self._numbered(spark, jsonl.splits(file, source, plan.split_bytes))
            elif source.format == PARQUET:
                splits += tabular.parquet_splits(file, source, plan.split_rows)
            elif source.format == INSIEME:
                splits += insieme.splits(file, source, plan.mapped, plan.split_rows)
            else:
                splits.append(Split(file, source.path, source.format, options=source.options))
        return splits

    def _numbered(self, spark: SparkSession, splits: list[Split]) -> list[Split]:
        """Add the number of lines before each split."""
        if len(splits) < 2:
            return splits
        counts = run_on_executors(spark, splits, count)
        before, numbered = 0, []
        for split, lines in zip(splits, counts, strict=True):
            numbered.append(msgspec.structs.replace(split, row=before))
            before += lines
        return numbered

    # -- loading -------------------------------------------------------------------------------------------

    def _load(self, log: CommitLog) -> LoadSummary:
        manifest, total = self._manifest, self._manifest.accepted
        certain = self._staging.loaded() if self._plan.full else 0
        loader = Loader(
            log,
            base=manifest.base,
            rows=certain,
            first_ms=manifest.first_ms,
            now_ms=manifest.began_ms,
            concerns=self._touches_import() if self._plan.full else None,
        )
        notified_at = time.monotonic()
        with gc_paused(), LargeTexts(self._staging.path("rows")) as texts:
            rows = _read_staged(self._staging.path("staged"), manifest.files, certain, texts)
            for group in groups(rows, self._plan.group_rows):
                loader.add(group)
                self._staging.keep_loaded(loader.progress.rows)
                if time.monotonic() - notified_at > 1 or loader.progress.rows == total:
                    notified_at = time.monotonic()
                    self._notify(f"loaded {loader.progress.rows} of {total} events")
        done = loader.progress
        if done.rows != total:
            raise Mismatch(f"{total} rows were staged and {done.rows} are in the log")
        return LoadSummary(done.committed, total - done.committed, done.foreign, done.moved_times, log.head())

    def _touches_import(self) -> Concerns:
        """A test whether records touch a partition of the import; an embedded log has no other writer."""
        if sqlite_directory(self._plan.store) is not None:
            return lambda _records: True
        parts = [np.empty(0, np.int64)]
        for name, _ in self._manifest.files:
            with pq.ParquetFile(self._staging.path("staged") / name) as file:
                for batch in file.iter_batches(columns=["partitions"]):
                    names = set(batch.column(0).flatten().to_pylist())
                    parts.append(np.fromiter(map(number_of, names), np.int64, len(names)))
        own = np.unique(np.concatenate(parts))

        def concerns(records: Sequence[Record]) -> bool:
            touched = {number_of(name) for record in records for name in record.partitions}
            return bool(np.isin(np.fromiter(touched, np.int64, len(touched)), own).any())

        return concerns


def _read_staged(
    folder: Path, files: list[tuple[str, int]], skip: int, texts: LargeTexts
) -> Iterator[PreparedRow]:
    """The rows to load, in order, without the first `skip`."""
    for name, rows in files:
        if skip >= rows:
            skip -= rows
            continue
        with pq.ParquetFile(folder / name) as file:
            for batch in file.iter_batches(batch_size=READ_ROWS):
                if skip >= batch.num_rows:
                    skip -= batch.num_rows
                    continue
                columns = [column.to_pylist() for column in batch.slice(skip).columns]
                skip = 0
                for id, client_id, partitions, event, hash, moment, author, at in zip(*columns, strict=True):
                    yield PreparedRow(
                        id, client_id, tuple(partitions), texts.text(event), hash, moment, author or "", at
                    )
