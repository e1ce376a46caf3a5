"""Spark sessions: the one place for their settings, with reasons.

The same settings serve `local[*]` on a laptop and `spark://…` on a cluster; `conf` given by a caller wins.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext, SparkFiles
from pyspark.sql import SparkSession

from unisono.pipeline.errors import PipelineError, brief
from unisono.pipeline.spark import jvm, private
from unisono.pipeline.spark.packing import pack

LOCAL: Final = "local[*]"

TASK_FAILURES_MAX: Final = 4
"""Spark's default on a cluster; a local master would give up at the first lost worker."""

MASTER_TIMEOUT_S: Final = 5.0
"""Time to find out that no master listens; Spark itself tries for a minute."""

EXECUTORS_TIMEOUT_S: Final = 60.0
"""Time for the first executor of a cluster to register; two seconds are usual."""

DRIVER_MEMORY: Final = "1g"
"""Rows stay in Python workers and Arrow; Java has plans, shuffles and sorts, which spill."""

SETTINGS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",  # opens no port
    "spark.ui.showConsoleProgress": "false",  # progress bars only with `progress`
    "spark.log.level": "ERROR",
    "spark.master.rest.enabled": "false",  # the same, for a master started with these settings
    "spark.sql.adaptive.enabled": "true",  # merges small shuffle partitions: 0.7 s instead of 4 to 8 s per small job
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "8192",  # a row group; bounds the memory of a worker
    "spark.sql.python.filterPushdown.enabled": "true",  # the source filters ranges of committed_id
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",  # by default Spark reads damaged pages as other rows
    "spark.sql.session.timeZone": "UTC",  # the same result on every machine
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.sql.streaming.minBatchesToRetain": "10",  # a follower's checkpoint stays small
    "spark.python.worker.reuse": "true",
    "spark.driver.memory": DRIVER_MEMORY,
    # Unused, but Spark would create it in the current directory.
    "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "unisono-warehouse"),
}

SHUFFLES: Final = "spark.sql.shuffle.partitions"
TASKS_PER_CORE: Final = 2
"""Shuffle partitions per core: Spark's default of 200 is far too many tasks for a few cores."""

_LOCAL_MASTER: Final = re.compile(r"^local(?:\[(\*|\d+)\])?$")


def is_local(master: str) -> bool:
    return master.startswith("local")


def session(
    master: str | None = None,
    app: str = "unisono",
    *,
    conf: Mapping[str, str] | None = None,
    progress: bool = False,
    quick: bool = False,
) -> SparkSession:
    """A session on `master`, or on the master of spark-submit, or on this machine.

    `quick`: Java skips its optimising compiler and starts faster, for jobs that run in Python. SQL over much data is
    faster without.
    """
    started = context(master, app, conf=conf, progress=progress, quick=quick)
    spark = SparkSession.builder.getOrCreate()
    if not is_local(str(started.master)) and not started.getConf().contains(SHUFFLES):
        spark.conf.set(SHUFFLES, str(TASKS_PER_CORE * max(1, started.defaultParallelism)))
    return spark


def context(
    master: str | None = None,
    app: str = "unisono",
    *,
    conf: Mapping[str, str] | None = None,
    progress: bool = False,
    quick: bool = True,
) -> SparkContext:
    """A context without SQL, for jobs that only run tasks; it starts some seconds faster."""
    running = private.active_context()
    if running is not None:
        return running
    if master is None and "PYSPARK_GATEWAY_PORT" in os.environ:
        return _submitted(app, conf or {})
    if submit_args := _submit_args():
        return _as_submitted(submit_args, master, app, conf or {})
    chosen = master or LOCAL
    settings = _settings(chosen, conf or {}, progress)
    _set_environment(chosen, settings)
    if not is_local(chosen):
        _require_master(chosen)
    settings |= {"spark.app.name": app, "spark.master": _with_retries(chosen)}
    gateway = _gateway(settings, quick=quick)
    try:
        started = SparkContext(conf=SparkConf().setAll(list(settings.items())), gateway=gateway)
    except Py4JError as error:
        raise PipelineError(f"Spark cannot be started on {chosen}: {brief(error)}") from error
    _require_executors(started)
    _ship(started, chosen)
    return started


def _ship(started: SparkContext, master: str) -> None:
    """Ship this package to executors on other machines."""
    if not is_local(master):
        folder = Path(tempfile.mkdtemp(prefix="unisono-", dir=SparkFiles.getRootDirectory()))
        started.addPyFile(str(pack(folder / "unisono.zip")))


def _settings(master: str, conf: Mapping[str, str], progress: bool) -> dict[str, str]:
    settings = dict(SETTINGS)
    if is_local(master):
        count = os.cpu_count() or 2
        settings[SHUFFLES] = str(max(2, min(8, TASKS_PER_CORE * count)))
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = "127.0.0.1"
    if memory := os.environ.get("SPARK_DRIVER_MEMORY"):
        settings["spark.driver.memory"] = memory
    if progress:
        settings["spark.ui.showConsoleProgress"] = "true"
    return settings | dict(conf)


def _set_environment(master: str, settings: Mapping[str, str]) -> None:
    """Workers use this Python by default; a local Spark listens on localhost only."""
    chosen = settings.get("spark.pyspark.python")
    os.environ.setdefault("PYSPARK_PYTHON", chosen or sys.executable)
    if is_local(master) or "127.0.0.1" in master or "localhost" in master:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _gateway(settings: dict[str, str], *, quick: bool) -> Any:
    """Start Java by the prepared command; without one by Spark's scripts, with the same options in `settings`."""
    prepared = jvm.PreparedStart(private.spark_home(), jvm.java_home())
    options = prepared.java_options()
    if quick:
        options.append("-XX:TieredStopAtLevel=1")
    more = settings.get("spark.driver.extraJavaOptions", "")
    launch = prepared.launch(settings)
    if launch is not None:
        return jvm.start(launch, [*options, *shlex.split(more)], settings["spark.driver.memory"])
    settings["spark.driver.extraJavaOptions"] = " ".join([*options, more]).strip()
    return private.gateway_by_scripts(settings)


def _submit_args() -> list[str]:
    """Arguments for spark-submit in the environment, where PySpark reads them."""
    words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    return [] if words in ([], ["pyspark-shell"]) else words


def _as_submitted(words: list[str], master: str | None, app: str, conf: Mapping[str, str]) -> SparkContext:
    """With arguments for spark-submit in the environment: Spark's scripts start Java."""
    if words[-1] != "pyspark-shell":
        raise PipelineError(
            "PYSPARK_SUBMIT_ARGS must end with the word pyspark-shell: see Spark's documentation"
        )
    joined = " ".join(words)
    named = re.search(r"--master[ =](\S+)", joined) or re.search(r"spark\.master=(\S+)", joined)
    chosen = master or (named[1] if named else LOCAL)
    _set_environment(chosen, conf)
    given = {**conf} if master is None and named else {**conf, "spark.master": _with_retries(chosen)}
    private.adopt_gateway(private.gateway_by_scripts(given))
    started = _submitted(app, given)
    _ship(started, chosen)
    return started


def _with_retries(master: str) -> str:
    match = _LOCAL_MASTER.match(master)
    return f"local[{match[1] or 1},{TASK_FAILURES_MAX}]" if match else master


def _submitted(app: str, conf: Mapping[str, str]) -> SparkContext:
    """Inside spark-submit, which has started Java and chosen the master; its settings win over SETTINGS."""
    private.adopt_gateway()
    chosen = SparkConf()
    for key, value in {**SETTINGS, **conf}.items():
        if key in conf or not chosen.contains(key):
            chosen.set(key, value)
    if not chosen.contains("spark.app.name"):
        chosen.setAppName(app)
    started = SparkContext(conf=chosen)
    _require_executors(started)
    return started


def _require_master(master: str) -> None:
    match = re.match(r"^spark://([^:/,]+):(\d+)$", master)
    if match is None:
        return  # several masters, YARN, Kubernetes: left to Spark
    try:
        socket.create_connection((match[1], int(match[2])), MASTER_TIMEOUT_S).close()
    except OSError as error:
        raise PipelineError(f"no Spark master answers at {master}: {error}") from error


def _require_executors(spark: SparkContext) -> None:
    """Fail when a standalone master has no resources for executors: it would let the job wait for ever.

    Other masters queue applications on purpose, and with dynamic allocation executors start with the first tasks.
    """
    conf = spark.getConf()
    if not str(spark.master).startswith("spark://") or conf.get("spark.dynamicAllocation.enabled") == "true":
        return
    deadline = time.monotonic() + EXECUTORS_TIMEOUT_S
    while private.executor_count(spark) < 1:
        if time.monotonic() > deadline:
            memory = conf.get("spark.executor.memory", "1g")
            spark.stop()
            raise PipelineError(
                f"no executor started within {EXECUTORS_TIMEOUT_S:.0f} s: are there workers with {memory} of memory "
                "and a core to spare? (settings spark.executor.memory, spark.executor.cores, spark.cores.max)"
            )
        time.sleep(0.1)
