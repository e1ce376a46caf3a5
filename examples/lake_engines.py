"""One partition of a lake with DuckDB, Polars and pandas: python examples/lake_engines.py LAKE PARTITION

Unisono is not needed for any of it: the tables are Delta tables, and the bucket of a partition is a hash of its name.
"""

# ruff: noqa: T201

import hashlib
import json
import sys

import duckdb
import pandas as pd
import polars as pl
from deltalake import DeltaTable

lake, name = sys.argv[1:]


def bucket(name: str, buckets: int) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % buckets


# The number of buckets is in the table's description. Bucket -1 has what was exported last.
by_partition = DeltaTable(f"{lake}/by_partition")
own = bucket(name, json.loads(by_partition.metadata().description)["buckets"])
wanted = [("bucket", "in", [-1, own]), ("partition", "=", name)]
files = by_partition.file_uris(file_pruning_predicate=wanted)
print(f"{name} is in bucket {own}: {len(files)} of {len(by_partition.file_uris())} files can have it")

columns = ["committed_id", "client_id", "type", "status_updated_at"]

# DuckDB. On a machine that may load its extension: FROM delta_scan('LAKE/by_partition') WHERE bucket IN (-1, …)
rows = duckdb.sql(
    "SELECT committed_id, client_id, type, make_timestamp(status_updated_at * 1000) AS committed_at "
    "FROM read_parquet($files) WHERE partition = $name ORDER BY committed_id",
    params={"files": files, "name": name},
).fetchall()
print(f"duckdb: {len(rows)} events, from {rows[0][0]} to {rows[-1][0]}")

# Polars
frame = (
    pl.scan_parquet(files, hive_partitioning=False)
    .filter(pl.col("partition") == name)
    .select(*columns, pl.from_epoch("status_updated_at", "ms").alias("committed_at"))
    .sort("committed_id")
    .collect()
)
print(f"polars: {frame.height} events, from {frame['committed_id'][0]} to {frame['committed_id'][-1]}")

# pandas
table = pd.concat(
    pd.read_parquet(file, columns=columns, filters=[("partition", "==", name)], partitioning=None)
    for file in files
).sort_values("committed_id")
table["committed_at"] = pd.to_datetime(table.status_updated_at, unit="ms", utc=True)
print(f"pandas: {len(table)} events, from {table.committed_id.iloc[0]} to {table.committed_id.iloc[-1]}")
