"""Reads a split on an executor: each row becomes an event or is refused, and is written as Parquet.

A split leaves `NAME.rows.parquet`, `NAME.keys.parquet`, `NAME.rejects.parquet`, `NAME.links.parquet`, `NAME.texts` if
it has large events, and last `NAME.json`, which marks it as done. A task that runs again finds the mark and does
nothing; after a kill it writes the files again.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from unisono.lake.columns import name_hash
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.import_ import insieme_file as insieme
from unisono.pipeline.jobs.import_ import json_lines as jsonl
from unisono.pipeline.jobs.import_ import tabular
from unisono.pipeline.jobs.import_.large_texts import LargeTextWriter
from unisono.pipeline.jobs.import_.outcomes import CONTENT_CHARS_MAX, REJECT_SCHEMA, RefusedRow
from unisono.pipeline.jobs.import_.repeats import KEY_SCHEMA, key_batch
from unisono.pipeline.jobs.import_.rows import ImportedEvent, SourceRow, to_event
from unisono.pipeline.jobs.import_.sources import CSV, INSIEME, JSONL, FieldMapping, Split
from unisono.pipeline.jobs.import_.staging import write_whole
from unisono.pipeline.open_log import gc_paused

BATCH_ROWS: Final = 4_096
BATCH_BYTES: Final = 8 << 20
"""Rows or bytes that a task collects before it writes them, whichever comes first."""

LINKS_HELD: Final = 100_000
"""Sets of partitions that a task remembers as written, so that most are written once."""

ROW_SCHEMA: Final = pa.schema(
    [
        pa.field("file", pa.int32()),
        pa.field("row", pa.int64()),
        pa.field("id", pa.string()),
        pa.field("client_id", pa.string()),
        pa.field("partitions", pa.list_(pa.field("element", pa.string()))),
        pa.field("event", pa.string()),
        pa.field("hash", pa.binary()),
        pa.field("committed_id", pa.int64()),
        pa.field("time", pa.int64()),
        pa.field("author", pa.string()),
    ]
)
"""A row that can be an event. `event` is its text, or where the text is (see `large_texts.py`)."""

LINK_SCHEMA: Final = pa.schema([pa.field("names", pa.list_(pa.field("element", pa.int64())))])
"""Partitions that share an event, by number."""


_DAMAGED: Final = (OSError, EOFError, zlib.error, pa.ArrowException, apsw.Error)
"""Errors of readers in a truncated or damaged file."""


class ReadTask(msgspec.Struct, frozen=True):
    """One split, and everything that decides its result."""

    split: Split
    number: int
    folder: str
    mapped: FieldMapping
    model: ShippedModel
    client_id: str

    @property
    def name(self) -> str:
        return split_name(self.number)


class Summary(msgspec.Struct):
    """Counts of a split. `ordered` rows have a committed id, `timed` a time, `migrated` the legacy field."""

    file: int
    rows: int = 0
    events: int = 0
    ordered: int = 0
    timed: int = 0
    migrated: int = 0
    reasons: dict[str, int] = {}
    first_ms: int | None = None


def split_name(number: int) -> str:
    """The name of the files of a split."""
    return f"{number:06d}"


def count(split: Split) -> int:
    """On an executor: the number of lines that begin in a split of JSON lines."""
    try:
        return jsonl.count_lines(split)
    except FileNotFoundError as error:
        raise _not_here(split) from error


def run_task(task: ReadTask) -> Summary:
    """On an executor: read one split, unless it is done."""
    if not Path(task.folder).is_dir():
        raise PipelineError(
            f"an executor does not see {task.folder}: --staging must be a directory that all machines share"
        )
    done = Path(task.folder, f"{task.name}.json")
    try:
        return msgspec.json.decode(done.read_bytes(), type=Summary)
    except (FileNotFoundError, msgspec.DecodeError):
        pass
    with gc_paused(), _Writing(task) as writing:
        model = task.model.load()
        for row in _readable(task.split, task.mapped):
            writing.add(row, to_event(row, model, task.client_id))
    write_whole(done, msgspec.json.encode(writing.summary))
    return writing.summary


def number_of(partition: str) -> int:
    """A number for a partition, where names take too much memory: the first eight bytes of its SHA-256.

    Two names with one number count as partitions that share events, which is harmless.
    """
    return int.from_bytes(name_hash(partition)[:8], "big", signed=True)


def _readable(split: Split, mapped: FieldMapping) -> Iterator[SourceRow]:
    """All rows of a split, or an error with the last readable row: no file is imported in part."""
    reached = 0
    try:
        for row in _rows(split, mapped):
            yield row
            reached = row.number
    except FileNotFoundError as error:
        raise _not_here(split) from error
    except _DAMAGED as error:
        after = f" after row {reached}" if reached else ""
        raise PipelineError(f"{split.path} is damaged{after}, and nothing was imported: {error}") from error


def _not_here(split: Split) -> PipelineError:
    return PipelineError(
        f"an executor does not see {split.path}: files to import must be on storage that all machines share, "
        "or in an object store"
    )


def _rows(split: Split, mapped: FieldMapping) -> Iterator[SourceRow]:
    if split.format == JSONL:
        return jsonl.read(split, mapped)
    if split.format == CSV:
        return tabular.read_csv(split, mapped)
    if split.format == INSIEME:
        return insieme.read(split, mapped)
    return tabular.read_parquet(split, mapped)


class _Writing:
    """The files of one split; every row goes into one of them."""

    def __init__(self, task: ReadTask) -> None:
        self._task = task
        self.summary = Summary(task.split.file)
        self._reasons: Counter[str] = Counter()
        self._events: list[tuple[int, ImportedEvent, bytes]] = []
        self._refused: list[tuple[Any, ...]] = []
        self._links: list[list[int]] = []
        self._linked: set[tuple[str, ...]] = set()
        self._bytes = 0
        self._files = ExitStack()

    def __enter__(self) -> _Writing:
        self._rows_file = self._open("rows", ROW_SCHEMA)
        self._keys_file = self._open("keys", KEY_SCHEMA)
        self._texts = LargeTextWriter(self._task.folder, self._task.name)
        self._files.callback(self._texts.close)
        self._rejects_file = self._open("rejects", REJECT_SCHEMA)
        self._links_file = self._open("links", LINK_SCHEMA)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._flush()
                self.summary.reasons = dict(self._reasons)
        finally:
            self._files.close()

    def _open(self, what: str, schema: Any) -> Any:
        path = Path(self._task.folder, f"{self._task.name}.{what}.parquet")
        return self._files.enter_context(pq.ParquetWriter(path, schema, compression="zstd"))

    def add(self, row: SourceRow, event: ImportedEvent | RefusedRow) -> None:
        self.summary.rows += 1
        if isinstance(event, RefusedRow):
            self._refuse(row, event)
        else:
            self._take(row.number, event)
        if len(self._events) + len(self._refused) >= BATCH_ROWS or self._bytes >= BATCH_BYTES:
            self._flush()

    def _refuse(self, row: SourceRow, refused: RefusedRow) -> None:
        self._reasons[refused.reason] += 1
        content = row.text.decode("utf-8", "replace")[:CONTENT_CHARS_MAX]
        id = row.id if isinstance(row.id, str) else None
        self._refused.append(
            (
                self._task.split.file,
                row.number,
                id and id.encode("utf-8", "replace").decode()[:CONTENT_CHARS_MAX],
                refused.reason,
                refused.field,
                refused.message.encode("utf-8", "replace").decode(),
                content,
            )
        )
        self._bytes += len(content)

    def _take(self, number: int, event: ImportedEvent) -> None:
        summary = self.summary
        summary.events += 1
        summary.migrated += event.migrated
        if event.committed_id is not None:
            summary.ordered += 1
        if event.time is not None:
            summary.timed += 1
            if summary.first_ms is None or event.time < summary.first_ms:
                summary.first_ms = event.time
        if len(event.partitions) > 1 and event.partitions not in self._linked:
            if len(self._linked) >= LINKS_HELD:
                self._linked.clear()
            self._linked.add(event.partitions)
            self._links.append([number_of(name) for name in event.partitions])
        text = self._texts.put(event.event)
        self._events.append((number, event, text))
        self._bytes += len(text)

    def _flush(self) -> None:
        if self._events:
            self._write_events()
        if self._refused:
            columns = list(zip(*self._refused, strict=True))
            self._rejects_file.write_batch(
                pa.RecordBatch.from_arrays(
                    [pa.array(c, f.type) for c, f in zip(columns, REJECT_SCHEMA, strict=True)],
                    schema=REJECT_SCHEMA,
                )
            )
        if self._links:
            self._links_file.write_batch(
                pa.RecordBatch.from_arrays(
                    [pa.array(self._links, LINK_SCHEMA.field(0).type)], schema=LINK_SCHEMA
                )
            )
        self._events, self._refused, self._links, self._bytes = [], [], [], 0

    def _write_events(self) -> None:
        rows, events, texts = zip(*self._events, strict=True)
        ids, hashes = [event.id for event in events], [event.hash for event in events]
        committed_ids, times = [event.committed_id for event in events], [event.time for event in events]
        columns = [
            [self._task.split.file] * len(rows),
            rows,
            ids,
            [event.client_id for event in events],
            [event.partitions for event in events],
            texts,
            hashes,
            committed_ids,
            times,
            [event.author for event in events],
        ]
        self._rows_file.write_batch(
            pa.RecordBatch.from_arrays(
                [pa.array(column, field.type) for column, field in zip(columns, ROW_SCHEMA, strict=True)],
                schema=ROW_SCHEMA,
            )
        )
        self._keys_file.write_batch(key_batch(self._task.number, rows, ids, hashes, committed_ids, times))
