"""Checks of what readers rely on, made when files are listed, opened and read.

Other programs can write to a Delta table. A file of another program may have its rows in any order, and a commit that
lost a line lacks rows; both would silently give wrong answers. So:

- our files are recognised by their names, which contain the ids of their statistics. Other files are refused, or
  read as `rearranged.py` describes them; `erasures` needs no order;
- the rows of all files add up to the committed count, which the table records; `log` has each id once;
- the footer of a file agrees with the table's statistics;
- rows ascend by partition and committed_id, or by committed_id alone, as they are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa

from unisono.lake.errors import ForeignFiles, LakeUnusable, one_line
from unisono.lake.remedies import remedy
from unisono.lake.row_groups import Footer
from unisono.lake.sorted_copies import open_source
from unisono.lake.storage import BY_PARTITION, ERASURES, LOG, Storage
from unisono.lake.write import DataFile

_OWN_NAME: Final = re.compile(r"(?:[\w=-]+/)*(\d{12,})-(\d{12,})-[0-9a-f]{32}\.parquet")


def has_own_name(file: DataFile) -> bool:
    return _OWN_NAME.fullmatch(file.path) is not None


def is_own(file: DataFile) -> bool:
    """Whether this program wrote a file: its name has the ids of the table's statistics."""
    name = _OWN_NAME.fullmatch(file.path)
    return (
        name is not None and (int(name[1]), int(name[2])) == (file.first_id, file.last_id) and file.rows > 0
    )


def require_own(table: str, uri: str, files: Sequence[DataFile]) -> None:
    """Refuse files of other programs. Those of `erasures` are read whole, in any order."""
    strange = [] if table == ERASURES else [file.path for file in files if not is_own(file)]
    if not strange:
        return
    more = f" and {len(strange) - 1} more files" if len(strange) > 1 else ""
    raise ForeignFiles(
        f"another program wrote {uri}/{strange[0]}{more}, or changed its statistics, so its rows can be in any "
        "order: `unisono lake compact` checks its rows and rewrites it in order"
    )


def require_all_rows(table: str, uri: str, files: Sequence[DataFile], head: int, rows: int | None) -> None:
    """Refuse a table whose files do not add up to the committed `rows` (None: not recorded)."""
    present = sum(file.rows for file in files)
    if rows is not None and present != rows:
        raise LakeUnusable(
            f"{uri} names files with {present} rows and {rows} were committed: another program changed the table, or "
            f"a commit has lost a line; {remedy(table)}"
        )
    if table in (LOG, BY_PARTITION) and (beyond := [file for file in files if file.last_id > head]):
        raise LakeUnusable(
            f"{uri} ends at event {head} by its transactions and {beyond[0].path} goes on to {beyond[0].last_id}: "
            f"another program changed the table; {remedy(table)}"
        )
    if table == LOG:
        _require_each_id_once(uri, files, head)


def _require_each_id_once(uri: str, files: Sequence[DataFile], head: int) -> None:
    reached = 0
    for file in files:
        if file.first_id != reached + 1 or file.rows != file.last_id - reached:
            break
        reached = file.last_id
    if reached != head:
        raise LakeUnusable(
            f"{uri} does not have each event up to {head} once, first after {reached}: another program changed the "
            f"table, or a commit has lost a line; {remedy(LOG)}"
        )


@contextmanager
def open_checked(storage: Storage, file: DataFile) -> Iterator[Any]:
    """A data file whose footer agrees with the table; damage in what is read is an error."""
    with ExitStack() as stack:
        source = stack.enter_context(open_source(storage, file))
        try:
            parquet = stack.enter_context(storage.open_parquet(source))
        except (pa.ArrowInvalid, OSError) as error:
            if isinstance(error, OSError) and (error.errno is not None or not storage.is_local):
                raise  # the disk or the store is at fault
            raise LakeUnusable(
                f"{file.table}/{file.path} is damaged ({one_line(error)}): run `unisono lake audit`"
            ) from error
        require_footer(file, parquet.metadata)
        yield parquet


def require_footer(file: DataFile, metadata: Any) -> None:
    """Refuse a file whose row groups, by their statistics, disagree with the table or are out of order."""
    footer = Footer(metadata)
    rows = sum(metadata.row_group(number).num_rows for number in range(len(footer)))
    ids = _edges(footer, "committed_id")
    sound = bool(ids) and metadata.num_rows == rows == file.rows
    sound = sound and (min(ids), max(ids)) == (file.first_id, file.last_id)
    if sound and "partition" in footer:
        names = [name.encode() for name in _edges(footer, "partition")]
        ends = (file.first_partition or "").encode(), (file.last_partition or "").encode()
        sound = bool(names) and names == sorted(names) and (names[0], names[-1]) == ends
    elif sound:
        sound = ids == sorted(ids)
    if not sound:
        raise LakeUnusable(
            f"the footer of {file.table}/{file.path} disagrees with the table: the file is damaged or was replaced "
            "(run `unisono lake audit`)"
        )


def _edges(footer: Footer, column: str) -> list[Any]:
    """The smallest and the largest value of each row group, in turn; empty unless all of them have both."""
    bounds = [footer.bounds(number, column) for number in range(len(footer))]
    return [] if None in bounds else [edge for each in bounds if each is not None for edge in each]


class RowOrder:
    """Checks that the rows of one file ascend as they are read.

    `repeats`: equal keys are allowed.
    """

    def __init__(self, file: DataFile, *, repeats: bool = False) -> None:
        self._file = file
        self._repeats = repeats
        self._last: tuple[bytes, int] = (b"", -1)

    def follow(self, ids: Any, names: Any | None = None) -> None:
        """Check the next rows: their committed ids, and their partitions where the table is sorted by these first."""
        if not len(ids):
            return
        ids = np.asarray(ids)
        rising = ids[1:] >= ids[:-1] if self._repeats else ids[1:] > ids[:-1]
        first = last = b""
        if names is not None:
            # In sorted rows names first occur in order, so their dictionary index is their rank.
            names = names.combine_chunks() if isinstance(names, pa.ChunkedArray) else names
            encoded = names.dictionary_encode()
            values = [name.encode() for name in encoded.dictionary.to_pylist()]
            ranks = np.asarray(encoded.indices)
            rising = (ranks[1:] > ranks[:-1]) | ((ranks[1:] == ranks[:-1]) & rising)
            first, last = values[ranks[0]], values[ranks[-1]]
            if values != sorted(values):
                self._refuse(int(ids[0]))
        start = first, int(ids[0])
        if start < self._last or (start == self._last and not self._repeats):
            self._refuse(int(ids[0]))
        if not rising.all():
            self._refuse(int(ids[int(np.argmin(rising)) + 1]))
        self._last = last, int(ids[-1])

    def _refuse(self, committed_id: int) -> None:
        raise LakeUnusable(
            f"the rows of {self._file.table}/{self._file.path} are out of order at event {committed_id}: run "
            "`unisono lake audit`"
        )
