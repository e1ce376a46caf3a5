"""Checks the ids that the log keeps of pruned events, for deduplication, against the lake.

One task reads all of them. Like the other copies, they are first compared by
fingerprints over blocks of committed ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec
import numpy as np

from unisono.pipeline.jobs.audit.compare_copies import (
    Cells,
    DifferenceText,
    DifferingBlocks,
    Key,
    collect_rows,
    difference,
    rows_within,
)
from unisono.pipeline.jobs.audit.findings import FindingTally
from unisono.pipeline.jobs.audit.tasks import AuditOutcome, Scope
from unisono.pipeline.open_log import extent, sqlite_directory
from unisono.pipeline.row_fingerprints import REMEMBERED_COLUMNS, batch_hashes, hashes, mix
from unisono.store.cluster import StoreLost
from unisono.store.port import StorageError
from unisono.store.sqlite.files import connect_reader
from unisono.store.statements import load_queries

ROWS_READ: Final = 5_000
"""Rows per read: about ten milliseconds, so that a running server's WAL can be reset."""

BLOCKS_MAX: Final = 64
"""Blocks compared row by row: all in one task, since each comparison reads all ids."""

ID_MAX: Final = (1 << 63) - 1
"""Also reads rows with an impossible committed_id."""

_SQL: Final = load_queries("sqlite")

_WORDS: Final = DifferenceText(
    "it has left the log, which does not remember it",
    "the log remembers it and the lake does not have it",
    "the log remembers it {} times",
    "what the log remembers of it differs from the lake in {}",
)

Remembered = tuple[str, int, str, int, bytes]


class PrunedIdMemory(msgspec.Struct, frozen=True):
    """The part of the first pass that reads the pruned ids."""

    events: int


def sum_memory(scope: Scope, outcome: AuditOutcome) -> None:
    """On an executor: the fingerprints of pruned ids, and findings for events that are not pruned."""
    assert scope.store is not None
    others: list[Any] = [np.zeros(0, np.int64)]
    try:
        for rows in _read(scope.store):
            ids = np.array([row[1] for row in rows], np.int64)
            within = (ids > 0) & (ids <= scope.store_since)
            outcome.remembered.add(ids[within], mix(ids, _row_hashes(rows))[within])
            outcome.count("remembered", int(within.sum()))
            others.append(ids[~within])
    except StoreLost:
        raise  # unavailable: the task is retried
    except StorageError as error:
        outcome.tally.add("pruned", f"what the log remembers of pruned events cannot be read: {error}")
        outcome.memory_unreadable = True
    # Read last: events may be pruned during the audit.
    beyond, pruned_to = np.concatenate(others), extent(scope.store).pruned_to
    for id in beyond[(beyond < 1) | (beyond > pruned_to)]:
        outcome.tally.add("pruned", "the log remembers it as gone, and it has not left", int(id))


def compare_memory(scope: Scope, task: DifferingBlocks) -> FindingTally:
    """On an executor: compare pruned ids with the lake, row by row."""
    tally = FindingTally(scope.head)
    lake: dict[Key, list[Cells]] = {}
    memory: dict[Key, list[Cells]] = {}
    for batch in rows_within(scope, task):
        ids = np.asarray(batch.column("committed_id"))
        collect_rows(lake, ids, [None] * len(ids), batch_hashes(batch, REMEMBERED_COLUMNS))
    assert scope.store is not None
    for rows in _read(scope.store):
        ids = np.array([row[1] for row in rows], np.int64)
        own = [row for row, inside in zip(rows, task.within(ids).tolist(), strict=True) if inside]
        collect_rows(memory, np.array([row[1] for row in own], np.int64), [None] * len(own), _row_hashes(own))
    for key in sorted(lake.keys() | memory.keys(), key=lambda key: key[0]):
        problem = difference(lake.get(key, []), memory.get(key, []), REMEMBERED_COLUMNS, _WORDS)
        hidden = key not in lake and any(part.first_id <= key[0] <= part.last_id for part in task.unreadable)
        if problem and not hidden:
            tally.add("pruned", problem, key[0])
    return tally


def _row_hashes(rows: Sequence[Remembered]) -> dict[str, Any]:
    return {
        "id": hashes([row[0] for row in rows]),
        "client_id": hashes([row[2] for row in rows]),
        "status_updated_at": np.array([row[3] for row in rows], np.int64).view("u8"),
        "hash": hashes([row[4] for row in rows]),
    }


def _read(store: str) -> Iterator[list[Remembered]]:
    directory = sqlite_directory(store)
    return _postgres_pages(store) if directory is None else _sqlite_pages(directory)


def _sqlite_pages(directory: Path) -> Iterator[list[Remembered]]:
    after = -ID_MAX
    try:
        with closing(connect_reader(directory)) as connection:
            while rows := _rows(
                connection.execute(_SQL["pruned_ids"], (after, ID_MAX, ROWS_READ)).fetchall()
            ):
                yield rows
                after = rows[-1][1]
    except (apsw.Error, UnicodeDecodeError) as error:
        raise StorageError(str(error)) from error


def _rows(found: Any) -> list[Remembered]:
    return list(found)


def _postgres_pages(store: str) -> Iterator[list[Remembered]]:
    from unisono.store.postgres.open_pipeline import open_pipeline
    from unisono.store.postgres.rows import unescape
    from unisono.store.postgres.timeouts import Timeouts

    after = ""
    with closing(open_pipeline(store, Timeouts())) as pipeline:
        while rows := pipeline.ask("pruned_ids", {"after": after, "upto": ID_MAX, "limit": ROWS_READ}):
            yield [(unescape(row[0]), row[1], unescape(row[2]), row[3], row[4]) for row in rows]
            after = rows[-1][0]
