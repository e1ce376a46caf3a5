"""Compares the tables `log` and `by_partition` where another program rearranged one of them.

Both tables have every column of an event, and the hash of an event covers only two of them. So an UPDATE of one table
that leaves events and hashes alone, and a VACUUM after it, show only beside the other table.

An erasure that was killed has put tombstones into one table and not yet into the other; so of recorded events the
columns that a tombstone takes away are not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from unisono.lake.digests import UNHASHED, Digest, row_digest
from unisono.lake.errors import LakeUnusable, one_line
from unisono.lake.rearranged import stored_paths
from unisono.lake.remedies import remedy
from unisono.lake.scan import runs_of
from unisono.lake.sorted_copies import raw_batches
from unisono.lake.storage import BY_PARTITION, ERASURES, LOG, Storage
from unisono.lake.table import Table
from unisono.lake.write import DataFile

_COLUMNS: Final = ("committed_id", "hash", *UNHASHED)
_NOT_OF_TOMBSTONES: Final = ("type", "schema", "author")


def require_same_rows(
    storage: Storage, log_files: Sequence[DataFile], partition_files: Sequence[DataFile]
) -> None:
    """Refuse described files (`rearranged.py`) of either table with rows that the other table does not have."""
    described = [file for file in (*log_files, *partition_files) if file.sources is not None]
    if not described:
        return
    # A kill may leave more in by_partition, and one that is made again from the log has less.
    end = min(max((file.last_id for file in files), default=0) for files in (log_files, partition_files))
    try:
        erased = recorded_ids(storage)
        for part in _apart(described, [*log_files, *partition_files]):
            since, upto = part[0].first_id - 1, min(end, max(file.last_id for file in part))
            log, by_partition = (
                partition_rows_digest(
                    storage, table, stored_paths(_within(files, since, upto)), since, upto, erased
                )
                for table, files in ((LOG, log_files), (BY_PARTITION, partition_files))
            )
            if log != by_partition:
                raise LakeUnusable(_difference(storage, part, since + 1, upto))
    except (OSError, ValueError, pa.ArrowException) as error:
        raise LakeUnusable(
            f"a file of another program in {storage.location} cannot be read ({one_line(error)}): "
            f"{remedy(described[0].table)}"
        ) from error


def _apart(described: Sequence[DataFile], files: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    """Described files in id order, in parts that have no stored file of either table in common: each is read once."""
    part: list[DataFile] = []
    read: set[str] = set()
    for run in runs_of(described):
        paths = stored_paths(_within(files, run[0].first_id - 1, max(file.last_id for file in run)))
        if part and read.isdisjoint(paths):
            yield part
            part, read = [], set()
        part += run
        read.update(paths)
    if part:
        yield part


def recorded_ids(storage: Storage) -> Any:
    """The events that are erased or will be, ascending."""
    table = Table.open(storage, ERASURES)
    found = [np.zeros(0, np.int64)]
    for file in () if table is None else table.files():
        found += [
            np.asarray(rows.column(0)) for rows in raw_batches(storage, ERASURES, file.path, ["committed_id"])
        ]
    return np.unique(np.concatenate(found))


def partition_rows_digest(
    storage: Storage, table: str, paths: Iterable[str], since: int, upto: int, erased: Any
) -> Digest:
    """The digest of every column of the rows that `by_partition` has, or by these files of `log` must have, of events
    of `(since, upto]`; `erased`: of which of them a tombstone may have changed some."""
    found = Digest()
    columns = [*_COLUMNS, "partitions" if table == LOG else "partition"]
    for path in paths:
        for rows in raw_batches(storage, table, path, columns, since, upto):
            batch = _without_erased(rows, erased)
            found += row_digest(_by_partition(batch) if table == LOG else batch)
    return found


def _without_erased(rows: pa.RecordBatch, erased: Any) -> pa.RecordBatch:
    concerned = np.isin(np.asarray(rows.column("committed_id")), erased)
    for name in _NOT_OF_TOMBSTONES if concerned.any() else ():
        column = pc.if_else(pa.array(concerned), pa.scalar(None, pa.string()), rows.column(name))
        rows = rows.set_column(rows.schema.names.index(name), name, column)
    return rows


def _by_partition(log: pa.RecordBatch) -> pa.RecordBatch:
    """A row for each partition of each event."""
    lists = log.column("partitions")
    rows = log.select(_COLUMNS).take(pc.list_parent_indices(lists))
    return rows.append_column("partition", pc.list_flatten(lists))


def _within(files: Sequence[DataFile], since: int, upto: int) -> list[DataFile]:
    return [file for file in files if file.last_id > since and file.first_id <= upto]


def _difference(storage: Storage, part: Sequence[DataFile], first: int, last: int) -> str:
    if all(file.table == BY_PARTITION for file in part):
        return (
            f"what another program wrote into {storage.table(BY_PARTITION)} within events {first} to {last} is not "
            f"what the table {LOG} has; {remedy(BY_PARTITION)}"
        )
    return (
        f"what another program wrote into {storage.table(LOG)} within events {first} to {last} is not what the table "
        f"{BY_PARTITION} has; {remedy(LOG)}"
    )
