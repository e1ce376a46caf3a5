"""Reading the lake's files without Spark: few row groups, flat memory, committed_id order. Used by executors."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from unisono.lake.columns import LOG_SCHEMA, bucket_of
from unisono.lake.file_checks import RowOrder, open_checked
from unisono.lake.row_groups import Footer, RowGroup
from unisono.lake.sections import Section, section_of
from unisono.lake.storage import LOG, Storage
from unisono.lake.write import GROUP_ROWS, UNBUCKETED, DataFile

BATCH_ROWS: Final = 8_192
COLUMNS: Final = tuple(LOG_SCHEMA.names)

OPEN_FILE_BYTES: Final = 28 << 20
UNPACKED: Final = 6
"""Memory of an open file, as a multiple of a stored row group, and at most: 60 files with eight events of 1 MiB each
took 1.6 GB."""


class RowRange(msgspec.Struct, frozen=True):
    """A selection of rows: committed ids in `(since, upto]`, of one partition or of all."""

    since: int
    upto: int
    partition: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return ("committed_id",) if self.partition is None else ("committed_id", "partition")

    def may_be_in(self, group: RowGroup) -> bool:
        """Whether a row group can have any of these rows."""
        return group.overlaps(self.since, self.upto) and (
            self.partition is None or group.first_name <= self.partition.encode() <= group.last_name
        )

    def expression(self) -> Any:
        wanted = (pc.field("committed_id") > self.since) & (pc.field("committed_id") <= self.upto)
        return wanted if self.partition is None else wanted & (pc.field("partition") == self.partition)


def scan_log(
    storage: Storage, files: Iterable[DataFile], since: int, upto: int, columns: Sequence[str] = COLUMNS
) -> Iterator[pa.RecordBatch]:
    """The events of `(since, upto]`, ascending; `files` are of the table `log`, by first id."""
    for file in files:
        if file.last_id > since and file.first_id <= upto:
            yield from scan_file(storage, file, RowRange(since, upto), columns)


def scan_partitions(
    storage: Storage,
    files: Iterable[DataFile],
    buckets: int,
    names: Sequence[str],
    since: int,
    upto: int,
    columns: Sequence[str] = COLUMNS,
    limit: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """The events of `(since, upto]` in any of `names`, ascending, each once, at most `limit`.

    Keeps one run's rows of these partitions in memory, with a limit at most that many of each.
    """
    wanted = sorted(set(names))
    read = list(dict.fromkeys((*columns, "committed_id")))
    left = limit
    for run in runs_of(files_with(files, buckets, wanted, since, upto)):
        if left == 0:
            return
        parts = [
            batch
            for file in run
            for name in wanted
            if file_may_contain(file, name, buckets)
            for batch in _first(scan_file(storage, file, RowRange(since, upto, name), read), left)
        ]
        if parts:
            rows = _distinct_by_id(pa.Table.from_batches(parts))
            if left is not None:
                rows = rows.slice(0, left)
                left -= rows.num_rows
            yield from rows.select(list(columns)).to_batches(max_chunksize=BATCH_ROWS)


def scan_file(
    storage: Storage, file: DataFile, span: RowRange, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of one file in `span`, in the file's order, from the row groups that may have any.

    LakeUnusable unless ids ascend in `log` and within a partition.
    """
    read = list(dict.fromkeys((*columns, *span.columns)))
    order = RowOrder(file) if file.table == LOG or span.partition is not None else None
    # A row group at a time: an object store then fetches its columns together, and nothing else.
    with open_checked(storage, file) as parquet:
        for group in Footer(parquet.metadata).row_groups():
            if not span.may_be_in(group):
                continue
            for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[group.number], columns=read):
                rows = batch.filter(span.expression())
                if order is not None:
                    order.follow(rows.column("committed_id"))
                if rows.num_rows:
                    yield rows.select(list(columns))


def runs_of(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    """Files grouped into runs, in id order: files with interleaved ids belong to one run."""
    run: list[DataFile] = []
    last = 0
    for file in sorted(files, key=lambda file: file.first_id):
        if run and file.first_id > last:
            yield run
            run = []
        run.append(file)
        last = max(last, file.last_id)
    if run:
        yield run


def chains(files: Iterable[DataFile]) -> list[list[DataFile]]:
    """Files in sequences of which each has its rows in order, and only one file open at a time.

    Within a run, files of one bucket and section follow each other by name, and a partition may go on from one to the
    next; from run to run, where their names ascend, too. A partition that is in several sequences has its events
    ascend from the first to the last: no two files of one run have it, unless they follow each other.
    """
    found: list[list[DataFile]] = []
    before: dict[tuple[int | None, Section | None], list[DataFile]] = {}
    for run in runs_of(files):
        latest: dict[tuple[int | None, Section | None], list[DataFile]] = {}
        for file in sorted(run, key=lambda file: (*names_of(file), file.first_id)):
            place = file.bucket, section_of(file)
            chain = latest.get(place) or before.get(place)
            if chain is None or names_of(file)[0] < names_of(chain[-1])[1]:
                found.append(chain := [])
            chain.append(file)
            latest[place] = chain
        before = latest
    return found


def names_of(file: DataFile) -> tuple[bytes, bytes]:
    """A file's first and last partition, in the form in which names are ordered; empty in `log`."""
    return (file.first_partition or "").encode(), (file.last_partition or "").encode()


def open_bytes(chain: Iterable[DataFile]) -> int:
    """Roughly the memory that files take while their rows are merged, one file after the other: of a row group,
    stored and decoded."""
    groups = (file.bytes * min(file.rows, GROUP_ROWS) // max(1, file.rows) for file in chain)
    return min(max(groups) * UNPACKED, OPEN_FILE_BYTES)


class OpenFiles:
    """Counts the files to read a partition, or a bucket, in order; or adds up a weight of their chains."""

    def __init__(self, weight: Callable[[Sequence[DataFile]], int] = len) -> None:
        self._weight = weight
        self._counts: Counter[tuple[int | None, Section | None]] = Counter()

    def add(self, files: Iterable[DataFile]) -> None:
        self._counts += self._added(files)

    def _added(self, files: Iterable[DataFile]) -> Counter[tuple[int | None, Section | None]]:
        counts: Counter[tuple[int | None, Section | None]] = Counter()
        for chain in chains(files):
            counts[chain[0].bucket, section_of(chain[0])] += self._weight(chain)
        return counts

    def with_more(self, files: Iterable[DataFile]) -> int:
        """How many there are together with these, or their weight."""
        counts = self._counts + self._added(files)
        fresh = counts.pop((UNBUCKETED, None), 0)
        most: dict[tuple[int | None, int], int] = {}  # by bucket and number of sections, of which one is read
        for (bucket, section), count in counts.items():
            kind = bucket, 0 if section is None else section.count
            most[kind] = max(most.get(kind, 0), count)
        by_bucket: Counter[int | None] = Counter()
        for (bucket, _), count in most.items():
            by_bucket[bucket] += count
        return fresh + max(by_bucket.values(), default=0)


def open_files_needed(files: Iterable[DataFile]) -> int:
    """How many of these files may be open at once to read a partition, or a bucket, in order."""
    return OpenFiles().with_more(files)


class NameIndex:
    """Names of partitions, sorted and by bucket, to find out which of them a file can have."""

    def __init__(self, names: Iterable[str], buckets: int) -> None:
        self._by_bucket: dict[int | None, list[bytes]] = {
            UNBUCKETED: sorted({name.encode() for name in names})
        }
        for name in self._by_bucket[UNBUCKETED]:
            self._by_bucket.setdefault(bucket_of(name.decode(), buckets), []).append(name)

    def in_file(self, file: DataFile) -> list[bytes]:
        """The names that a file of `by_partition` or `snapshots` can have, sorted by their UTF-8 bytes."""
        assert file.first_partition is not None
        assert file.last_partition is not None
        own = self._by_bucket.get(file.bucket, [])
        first = bisect_left(own, file.first_partition.encode())
        inside = own[first : bisect_right(own, file.last_partition.encode(), lo=first)]
        section = section_of(file)
        return inside if section is None else [name for name in inside if section.holds(name.decode())]


def files_with(
    files: Iterable[DataFile], buckets: int, names: Sequence[str], since: int, upto: int
) -> list[DataFile]:
    """The files of `by_partition` that may have rows of `names` in `(since, upto]`."""
    index = NameIndex(names, buckets)
    return [file for file in files if file.last_id > since and file.first_id <= upto and index.in_file(file)]


def file_may_contain(file: DataFile, name: str, buckets: int) -> bool:
    """Whether a file of `by_partition` can have rows of this partition."""
    assert file.first_partition is not None
    assert file.last_partition is not None
    # Partition names are ordered by their UTF-8 bytes, everywhere.
    section = section_of(file)
    return (
        file.bucket in (UNBUCKETED, bucket_of(name, buckets))
        and (section is None or section.holds(name))
        and file.first_partition.encode() <= name.encode() <= file.last_partition.encode()
    )


def _first(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """Up to `limit` rows; the rest is not read."""
    left = limit
    for batch in batches:
        if left is None:
            yield batch
            continue
        yield batch.slice(0, left)
        left -= batch.num_rows
        if left <= 0:
            return


def _distinct_by_id(rows: pa.Table) -> pa.Table:
    """In committed_id order; an event in several of the partitions occurs once for each."""
    ids = np.asarray(rows.column("committed_id"))
    _, places = np.unique(ids, return_index=True)
    return rows if len(places) == len(ids) and _ascending(ids) else rows.take(pa.array(places))


def _ascending(ids: Any) -> bool:
    return bool((ids[1:] > ids[:-1]).all())
