"""The same fold and the same audit on a standalone cluster of one, two and four executors with one core each."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession
from tests.pipeline.cluster import running_cluster

from benchmarks.scale.growth import tell
from benchmarks.scale.results import Measured, ResultFile
from unisono.lake.lake import Lake
from unisono.pipeline.job_model import in_force
from unisono.pipeline.jobs.audit.job import AuditOptions, audit
from unisono.pipeline.jobs.snapshot.job import snapshot
from unisono.pipeline.open_log import sqlite_uri
from unisono.pipeline.spark.executors import parallelism
from unisono.pipeline.spark.session import session


def measure(source: Path, events: int, executors: int, results: ResultFile) -> None:
    """On the lake of a growth measurement, copied."""
    name = f"cluster {events} {executors}"
    if {"fold", "audit"} <= set(results.read().steps.get(name, {})):
        return
    model = in_force(sqlite_uri(source / "data"))
    with tempfile.TemporaryDirectory(dir=source) as folder:
        shutil.copytree(source / "lake", Path(folder) / "lake")
        lake = Lake.at(str(Path(folder) / "lake"))
        with running_cluster(Path(folder) / "cluster", executors) as cluster:
            spark = session(cluster.master, "scale", conf=cluster.conf, quick=True)
            _until_all_are_there(spark, executors)
            audit(spark, lake, None, AuditOptions(sample=0))  # every executor has started its worker
            steps: dict[str, Callable[[], object]] = {
                "fold": lambda: snapshot(spark, lake, model, rebuild=True),
                "audit": lambda: audit(spark, lake, None, AuditOptions(sample=0)),
            }
            for step, work in steps.items():
                load, began = os.getloadavg()[0], time.perf_counter()
                work()
                measured = Measured(time.perf_counter() - began, items=events, load=load)
                results.end(name, step, measured)
                tell(f"{executors} executors, {step}", measured)
            spark.stop()


def _until_all_are_there(spark: SparkSession, executors: int) -> None:
    deadline = time.monotonic() + 60
    while parallelism(spark) < executors and time.monotonic() < deadline:
        time.sleep(0.2)
