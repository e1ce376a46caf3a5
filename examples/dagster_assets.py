"""The lake as assets of Dagster: `dagster dev -f examples/dagster_assets.py`."""

from __future__ import annotations

from dagster import Definitions, asset
from lake_tasks import audit_lake, export_log, fold_snapshots

STORE = "postgresql://reader@db/unisono"
LAKE = "s3://bucket/lake"
MASTER = "sc://spark:15002"


@asset
def unisono_log() -> dict[str, int]:
    """The tables `log` and `by_partition`."""
    return export_log(STORE, LAKE, MASTER)


@asset(deps=[unisono_log])
def unisono_snapshots() -> dict[str, int]:
    """The table `snapshots`."""
    return fold_snapshots(STORE, LAKE, MASTER)


@asset(deps=[unisono_snapshots])
def unisono_audit() -> str:
    """The verdict of an audit."""
    return audit_lake(STORE, LAKE, MASTER)


defs = Definitions(assets=[unisono_log, unisono_snapshots, unisono_audit])
