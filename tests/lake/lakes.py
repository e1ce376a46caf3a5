"""Lakes for tests that need no Spark: the pipeline's own tasks and commits, run one after the other right here."""

from __future__ import annotations

import pickle
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from unisono.lake.lake import Lake
from unisono.pipeline.jobs.compact import job as compaction
from unisono.pipeline.jobs.export.job import EVENTS_PER_FILE, export
from unisono.pipeline.open_log import sqlite_uri


def _travelled(item: Any) -> Any:
    """As it arrives in another process: what could not go there fails here, too."""
    return pickle.loads(pickle.dumps(item))


class _Rows:
    """A DataFrame of Arrow batches, as far as the pipeline uses one to run tasks; its partitions."""

    def __init__(self, *parts: Iterable[pa.RecordBatch]) -> None:
        self._parts = parts

    def mapInArrow(self, work: Callable[[Any], Iterable[pa.RecordBatch]], _: str) -> _Rows:  # noqa: N802
        return _Rows(*(_travelled(work)(iter(part)) for part in self._parts))

    def repartitionById(self, _: int, name: str) -> _Rows:  # noqa: N802
        batches = [batch for part in self._parts for batch in part]
        numbers = sorted({number for batch in batches for number in batch.column(name).to_pylist()})
        return _Rows(*([batch.filter(pc.field(name) == number) for batch in batches] for number in numbers))

    def collect(self) -> list[tuple[Any, ...]]:
        batches = [batch for part in self._parts for batch in part]
        names = batches[0].schema.names if batches else []
        row = namedtuple("Row", names)  # type: ignore[misc]
        return [row(*values.values()) for batch in batches for values in batch.to_pylist()]


class _Here:
    """Does in this process what a Spark session does on executors."""

    sparkContext = SimpleNamespace(defaultParallelism=1)  # noqa: N815

    def range(self, count: int, numPartitions: int) -> _Rows:  # noqa: N803
        assert 1 <= numPartitions <= count
        return _Rows([pa.RecordBatch.from_pydict({"id": pa.array(range(count), pa.int64())})])

    def createDataFrame(self, table: pa.Table) -> _Rows:  # noqa: N802
        return _Rows(table.to_batches())


HERE = cast("Any", _Here())


def export_to(
    lake: Lake, store: str | Path, *heads: int | None, events_per_file: int = EVENTS_PER_FILE
) -> None:
    """One export up to each of `heads`, as if it had been run then; None: to where the log ends."""
    uri = sqlite_uri(store) if isinstance(store, Path) else store
    lake.make()
    for head in heads or (None,):
        export(HERE, uri, lake, to=head, events_per_file=events_per_file)


@contextmanager
def spreading() -> Iterator[None]:
    """Compaction spreads runs over the buckets however small they are, as it does in a long history."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "UNBUCKETED_ROWS_MAX", 0)
        yield


def compact(lake: Lake, rows_per_file: int = compaction.ROWS_PER_FILE) -> None:
    with spreading():
        compaction.compact(HERE, lake, rows_per_file)


def vacuum(lake: Lake) -> int:
    """Remove every replaced file at once."""
    return compaction.vacuum(lake, 0)
