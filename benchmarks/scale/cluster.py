"""The same fold and the same audit on a standalone cluster of one, two and four executors with one core each.

An executor with its Java, its Python worker and what they hand over keeps more than one core busy, so on a small
machine one executor already uses all of it. Where control groups allow it, each has a share of one core, small enough
that four of them and the driver fit on the machine: what is measured then is how the jobs share work out.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from tests.pipeline.cluster import running_cluster

from benchmarks.scale import cpu_share
from benchmarks.scale.growth import tell
from benchmarks.scale.results import Measured, ResultFile
from unisono.lake.lake import Lake
from unisono.pipeline.job_model import in_force
from unisono.pipeline.jobs.audit.job import AuditOptions, audit
from unisono.pipeline.jobs.snapshot.job import snapshot
from unisono.pipeline.open_log import sqlite_uri
from unisono.pipeline.spark.executors import parallelism
from unisono.pipeline.spark.session import session

SHARE: Final = 0.35 if cpu_share.possible() else 1.0
"""Of a core, for each executor: four leave the driver and Java's own a third of two cores."""


def measure(source: Path, events: int, executors: int, results: ResultFile) -> None:
    """On the lake of a growth measurement, copied."""
    name = f"cluster {events} {executors}"
    if {"fold", "audit"} <= set(results.read().steps.get(name, {})):
        return
    model = in_force(sqlite_uri(source / "data"))
    with tempfile.TemporaryDirectory(dir=source) as folder, ExitStack() as shares:
        shutil.copytree(source / "lake", Path(folder) / "lake")
        lake = Lake.at(str(Path(folder) / "lake"))
        with running_cluster(Path(folder) / "cluster", executors) as cluster:
            spark = session(cluster.master, "scale", conf=cluster.conf, quick=True)
            _until_all_are_there(spark, executors)
            if SHARE < 1:
                shares.enter_context(cpu_share.limited(cluster.executors(), SHARE))
            audit(spark, lake, None, AuditOptions(sample=0))  # every executor has started its worker
            steps: dict[str, Callable[[], object]] = {
                "fold": lambda: snapshot(spark, lake, model, rebuild=True),
                "audit": lambda: audit(spark, lake, None, AuditOptions(sample=0)),
            }
            for step, work in steps.items():
                load, began = os.getloadavg()[0], time.perf_counter()
                work()
                measured = Measured(time.perf_counter() - began, items=events, load=load, share=SHARE)
                results.end(name, step, measured)
                tell(f"{executors} executors, {step}", measured)
            spark.stop()


def _until_all_are_there(spark: SparkSession, executors: int) -> None:
    deadline = time.monotonic() + 60
    while parallelism(spark) < executors and time.monotonic() < deadline:
        time.sleep(0.2)
