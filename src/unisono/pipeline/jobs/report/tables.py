"""The figures of a report as tables: rows for the page and for the Parquet files beside it.

Times are milliseconds since the epoch, sizes bytes of event text. A row that starts at `at` covers one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

DAY_MS: Final = 86_400_000

_ARROW: Final = {int: pa.int64(), float: pa.float64(), str: pa.string()}


class TableRow(msgspec.Struct, frozen=True):
    """One row of some table; its fields are the columns."""


class Activity(TableRow, frozen=True):
    """Counts of one step, and totals at its end."""

    at: int
    events: int
    bytes: int
    clients: int
    partitions: int
    events_by_then: int
    bytes_by_then: int


class KindActivity(TableRow, frozen=True):
    """Events of one kind in one step; both names null for those of all kinds that are not the most frequent."""

    at: int
    type: str | None
    schema: str | None
    events: int


class BusyPartition(TableRow, frozen=True):
    partition: str
    events: int
    bytes: int
    clients: int
    first_at: int
    last_at: int


class BusyClient(TableRow, frozen=True):
    client_id: str
    events: int
    bytes: int
    partitions: int
    first_at: int
    last_at: int


class EventKindRow(TableRow, frozen=True):
    """Events of one type, and of one schema where the type is `event`."""

    type: str | None
    schema: str | None
    events: int
    bytes: int
    largest: int

    @property
    def name(self) -> str:
        return kind_name(self.type, self.schema)


class Bin(TableRow, frozen=True):
    """How many have a value at or above `low` and below `high`; null where there is no bound."""

    low: int | None
    high: int | None
    count: int


class Contested(TableRow, frozen=True):
    """Edits in one step, and those that closely followed another client's edit of the same item."""

    at: int
    edits: int
    contested: int


class ContestedItem(TableRow, frozen=True):
    partition: str
    item: str
    contested: int
    clients: int
    closest_ms: int


class FreedByRetention(TableRow, frozen=True):
    """What could be pruned from the log if it kept the last `keep_days` days."""

    keep_days: int
    events: int
    bytes: int


class Rejections(TableRow, frozen=True):
    reason: str
    items: int


class Distribution(msgspec.Struct, frozen=True):
    """Values in bins, with their 50th, 90th and 99th percentile (to three digits)."""

    bins: list[Bin]
    values: int
    half: int | None
    tenth: int | None
    hundredth: int | None
    largest: int | None


class ServerCounts(msgspec.Struct, frozen=True):
    """What running servers have counted since each of them started."""

    servers: int
    commits: int
    duplicates: int
    rejections: list[Rejections]


class Totals(msgspec.Struct, frozen=True):
    """The range as a whole; `first_at` and `last_at` are None where it is empty."""

    events: int = 0
    bytes: int = 0
    clients: int = 0
    partitions: int = 0
    first_id: int | None = None
    last_id: int | None = None
    first_at: int | None = None
    last_at: int | None = None


class Contests(msgspec.Struct, frozen=True):
    """`edits` counts events that name an item, once for each of their partitions; `unnamed` the others."""

    within_ms: int
    edits: int
    unnamed: int
    contested: int
    items: int
    over_time: list[Contested]
    top: list[ContestedItem]


class HotLog(msgspec.Struct, frozen=True):
    """The lake's events that the hot log has; `known` is False where no log is given and all are assumed.

    `file_bytes` is the size of an embedded log's file.
    """

    known: bool
    since: int
    events: int
    bytes: int
    freed: list[FreedByRetention]
    file_bytes: int | None = None


class HistoryReport(msgspec.Struct, frozen=True):
    """Everything a page shows. It depends on the lake's head only, not on the time."""

    head: int
    head_at: int
    from_ms: int | None
    to_ms: int | None
    step_ms: int
    totals: Totals
    activity: list[Activity]
    kinds_over_time: list[KindActivity]
    partitions: list[BusyPartition]
    clients: list[BusyClient]
    kinds: list[EventKindRow]
    kinds_in_all: int
    sizes: Distribution
    sharing: list[Bin]
    contests: Contests
    drafts: Distribution
    drafts_ahead: int
    hot: HotLog
    server: ServerCounts | None = None

    def tables(self) -> dict[str, tuple[type[TableRow], Sequence[TableRow]]]:
        """Every table by its name."""
        return {
            "activity": (Activity, self.activity),
            "kinds_over_time": (KindActivity, self.kinds_over_time),
            "busiest_partitions": (BusyPartition, self.partitions),
            "busiest_clients": (BusyClient, self.clients),
            "kinds": (EventKindRow, self.kinds),
            "sizes": (Bin, self.sizes.bins),
            "clients_per_partition": (Bin, self.sharing),
            "contested": (Contested, self.contests.over_time),
            "contested_items": (ContestedItem, self.contests.top),
            "draft_to_commit": (Bin, self.drafts.bins),
            "retention": (FreedByRetention, self.hot.freed),
            "rejections": (Rejections, self.server.rejections if self.server else []),
        }


def kind_name(type_: str | None, schema: str | None) -> str:
    """The name of a kind of events, for people."""
    return schema if schema is not None else type_ if type_ is not None else "(no type)"


def arrow_schema(row: type[TableRow]) -> pa.Schema:
    """The columns of a table, from the fields of its rows."""
    hints = get_type_hints(row)
    return pa.schema([_column(name, hints[name]) for name in row.__struct_fields__])


def _column(name: str, hint: Any) -> pa.Field:
    nullable = get_origin(hint) is UnionType
    plain = next(part for part in get_args(hint) if part is not type(None)) if nullable else hint
    return pa.field(name, _ARROW[plain], nullable)


def write_table(path: Path, row: type[TableRow], rows: Sequence[TableRow]) -> None:
    """Write the rows as one Parquet file, atomically."""
    table = pa.Table.from_pylist([msgspec.structs.asdict(each) for each in rows], arrow_schema(row))
    unfinished = path.with_name(f".{path.name}.unfinished")
    pq.write_table(table, unfinished, compression="zstd")
    unfinished.replace(path)
