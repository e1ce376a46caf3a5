"""The lake every hour, by Airflow 3: put this file and `lake_tasks.py` where Airflow looks for DAGs."""

from __future__ import annotations

import datetime

from airflow.sdk import dag, task
from lake_tasks import audit_lake, export_log, fold_snapshots

STORE = "postgresql://reader@db/unisono"
LAKE = "s3://bucket/lake"
MASTER = "sc://spark:15002"


@dag(schedule="@hourly", start_date=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), catchup=False)
def unisono_lake() -> None:
    exported = task(export_log)(STORE, LAKE, MASTER)
    folded = task(fold_snapshots)(STORE, LAKE, MASTER)
    audited = task(audit_lake)(STORE, LAKE, MASTER)
    exported >> folded >> audited


unisono_lake()
