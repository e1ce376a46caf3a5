"""The lake kept current by a scheduler: plain functions, each safe to run again after any failure.

Airflow (`airflow_dag.py`) and Dagster (`dagster_assets.py`) schedule them. Each returns numbers and texts, which a
scheduler can keep and show.
"""

from __future__ import annotations

from unisono import pipeline


def export_log(store: str, lake: str, master: str | None = None) -> dict[str, int]:
    """Copy what the lake lacks, each event exactly once."""
    done = pipeline.export(pipeline.session(master, "export"), store, lake)
    return {"events": done.events, "upto": done.upto}


def fold_snapshots(store: str, lake: str, master: str | None = None) -> dict[str, int]:
    """Bring the snapshots of all partitions to the lake's head."""
    done = pipeline.make_snapshots(pipeline.session(master, "snapshots"), lake, store=store)
    return {"partitions": done.partitions, "upto": done.upto}


def audit_lake(store: str, lake: str, master: str | None = None) -> str:
    """Check everything; an unsound history fails the task."""
    report = pipeline.audit(pipeline.session(master, "audit"), lake, store)
    if not report.sound:
        raise RuntimeError(report.text())
    return report.verdict()
