"""Lakes for tests that need no Spark: the pipeline's own tasks and commits, run one after the other right here."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from unisono.lake.lake import Lake
from unisono.pipeline.jobs.compact import job as compaction
from unisono.pipeline.jobs.export.job import EVENTS_PER_FILE, export
from unisono.pipeline.open_log import sqlite_uri


def _travelled(item: Any) -> Any:
    """As it arrives in another process: what could not go there fails here, too."""
    return pickle.loads(pickle.dumps(item))


class _Spread:
    """What `SparkContext.parallelize` gives, as far as the pipeline uses it."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items

    def map(self, work: Callable[[Any], Any]) -> _Spread:
        return _Spread(map(work, self._items))

    def flatMap(self, work: Callable[[Any], Iterable[Any]]) -> _Spread:  # noqa: N802
        return _Spread(item for each in self._items for item in work(each))

    def collect(self) -> list[Any]:
        return [_travelled(item) for item in self._items]


class _Shared:
    """A broadcast variable."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def destroy(self) -> None:
        """There is only the driver's value."""

    unpersist = destroy


class _Here:
    """Does in this process what a Spark context does on executors."""

    defaultParallelism = 1  # noqa: N815

    def parallelize(self, tasks: Sequence[Any], _: int) -> _Spread:
        return _Spread(map(_travelled, tasks))

    def broadcast(self, value: Any) -> _Shared:
        return _Shared(value)


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
