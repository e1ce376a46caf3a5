"""What a Parquet file's footer says about its row groups; no rows are read.

Readers choose the row groups they open by these minimum and maximum values. `file_checks.require_footer` makes sure
that our own files have them; files that were not checked (audit, erasure) may lack them, and `bounds` is then None.
Files of other programs are not read by their statistics at all: `rearranged.py` and `jobs/compact/foreign_files.py`
read the ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

NO_NAME: Final = b""
"""The partition name of every row of the table `log`, which has no column `partition`."""


class RowGroup(msgspec.Struct, frozen=True):
    """One row group of a checked file: its size, and the range of its committed ids and partition names.

    Names are UTF-8 bytes, which is how every file is sorted.
    """

    number: int
    rows: int
    uncompressed_bytes: int
    first_id: int
    last_id: int
    first_name: bytes = NO_NAME
    last_name: bytes = NO_NAME

    def overlaps(self, since: int, upto: int) -> bool:
        """Whether it can have ids in `(since, upto]`."""
        return self.last_id > since and self.first_id <= upto

    def within(self, since: int, upto: int) -> bool:
        """Whether all of its ids are in `(since, upto]`."""
        return self.first_id > since and self.last_id <= upto


class Footer:
    """The footer of one Parquet file."""

    def __init__(self, metadata: Any) -> None:
        self._metadata = metadata
        self._columns = {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}

    def __len__(self) -> int:
        return int(self._metadata.num_row_groups)

    def __contains__(self, column: str) -> bool:
        return column in self._columns

    def bounds(self, group: int, column: str) -> tuple[Any, Any] | None:
        """The smallest and the largest value of a column in a row group; None when the footer does not say."""
        if column not in self._columns:
            return None
        known = self._metadata.row_group(group).column(self._columns[column]).statistics
        return None if known is None or not known.has_min_max else (known.min, known.max)

    def uncompressed_bytes(self, group: int, column: str) -> int:
        return int(self._metadata.row_group(group).column(self._columns[column]).total_uncompressed_size)

    def row_groups(self) -> Iterator[RowGroup]:
        """All row groups, in the file's order; the file has passed `require_footer`."""
        for number in range(len(self)):
            group = self._metadata.row_group(number)
            ids = group.column(self._columns["committed_id"]).statistics
            names: tuple[bytes, ...] = ()
            if "partition" in self:
                known = group.column(self._columns["partition"]).statistics
                names = known.min.encode(), known.max.encode()
            yield RowGroup(number, group.num_rows, group.total_byte_size, ids.min, ids.max, *names)
