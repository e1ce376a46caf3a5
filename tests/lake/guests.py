"""What other Delta writers do to the tables of a lake: they keep the rows and lose their order."""

from __future__ import annotations

import polars
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, LOG


def delta(lake: Lake, table: str) -> DeltaTable:
    return DeltaTable(lake.storage.table(table), storage_options=lake.storage.options or None)


def optimize(lake: Lake, table: str) -> None:
    delta(lake, table).optimize.compact()


def z_order(lake: Lake, table: str) -> None:
    delta(lake, table).optimize.z_order(["client_id", "hash"])


def overwrite_with_polars(lake: Lake, table: str) -> None:
    """The same rows, sorted by something else."""
    rows = polars.read_delta(lake.storage.table(table)).sort("hash")
    rows.write_delta(lake.storage.table(table), mode="overwrite")


def overwrite_one_bucket(lake: Lake, table: str) -> None:
    """Of `by_partition` one bucket, of `log` one range of ids."""
    found = delta(lake, table)
    if table == BY_PARTITION:
        bucket = pc.max(pa.table(found.to_pyarrow_table(columns=["bucket"])).column(0)).as_py()
        predicate, own = f"bucket = {bucket}", pc.field("bucket") == bucket
    else:
        predicate, own = "committed_id <= 500", pc.field("committed_id") <= 500
    rows = found.to_pyarrow_table().filter(own)
    shuffled = rows.take(pc.sort_indices(rows, [("hash", "descending")]))
    write_deltalake(lake.storage.table(table), shuffled, mode="overwrite", predicate=predicate)


def vacuum(lake: Lake, *tables: str) -> None:
    """Former files go at once."""
    for table in tables or (LOG, BY_PARTITION):
        delta(lake, table).vacuum(0, dry_run=False, enforce_retention_duration=False)
