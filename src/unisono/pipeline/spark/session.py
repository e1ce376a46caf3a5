"""Spark sessions: the one place for their settings, with reasons.

The same settings serve `local[*]` on a laptop and `spark://…` on a cluster; `conf` given by a caller wins. On a Spark
Connect server (`sc://…`) those apply that a session can have.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from unisono.extras import install_command
from unisono.pipeline.errors import PipelineError, brief
from unisono.pipeline.spark import jvm, private
from unisono.pipeline.spark.executors import parallelism
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

FEW_ROWS_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings of a session in which Java handles few rows: it would take longer to compile SQL than to interpret it."""

SHUFFLES: Final = "spark.sql.shuffle.partitions"
TASKS_PER_CORE: Final = 2
"""Shuffle partitions per core: Spark's default of 200 is far too many tasks for a few cores."""

CONNECT: Final = "sc://"
CONNECT_PORT: Final = 15002
"""Where a Spark Connect server listens unless its address says otherwise."""

CONNECT_SETTINGS: Final[Mapping[str, str]] = {
    key: SETTINGS[key]
    for key in (
        "spark.sql.execution.arrow.maxRecordsPerBatch",
        "spark.sql.python.filterPushdown.enabled",
        "spark.sql.session.timeZone",
    )
}
"""Settings that a session on somebody else's server gets."""

FIXED_SETTINGS: Final = ("spark.executorEnv.", "spark.hadoop.", "spark.kubernetes.", "spark.yarn.")
"""Prefixes of settings that a session stores at any time, and that count only where Spark is started."""

_given: Final[WeakKeyDictionary[SparkSession, Mapping[str, str]]] = WeakKeyDictionary()
"""What callers gave for sessions that were started here: Spark adds to some settings, such as Java's options."""

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
    few_rows: bool = False,
) -> SparkSession:
    """The running session, which must not be on another master; else one on `master`, or on the master of
    spark-submit, or on this machine.

    A master of `sc://HOST:PORT` is a Spark Connect server, as is one in SPARK_REMOTE.

    `conf` changes the running session, too; a setting that it can no longer take is an error.

    `quick`: Java skips its optimising compiler and starts faster, for jobs that run in Python. SQL over much data is
    faster without. `few_rows`: it does not compile SQL either, for jobs in which Java has tasks and results only.
    """
    given = conf or {}
    named = master or given.get("spark.master")
    running = private.running_session()
    if running is not None and private.is_connect(running) and not _answers(running):
        private.forget_connect_session(running)
        running = None
    if running is not None:
        _require_master_of(running, named)
        _change_settings(running, given)
        return running
    spark = _started(master, named, app, given, progress=progress, quick=quick, few_rows=few_rows)
    _given[spark] = dict(given)
    return spark


def _started(
    master: str | None,
    named: str | None,
    app: str,
    given: Mapping[str, str],
    *,
    progress: bool,
    quick: bool,
    few_rows: bool,
) -> SparkSession:
    """A session where there is none."""
    if master is None and "PYSPARK_GATEWAY_PORT" in os.environ:
        spark = private.submitted_session({**SETTINGS, "spark.app.name": app}, given)
        _require_executors(spark)
        return _with_shuffles(spark)
    server = named or os.environ.get("SPARK_REMOTE", "")
    if server.startswith(CONNECT):
        return _connected(server, app, given)
    os.environ.pop("SPARK_REMOTE", None)  # PySpark and Java would take it before the master
    private.leave_connect()
    if submit_args := _submit_args():
        return _with_shuffles(_as_submitted(submit_args, named, app, given))
    chosen = named or LOCAL
    settings = _settings(chosen, given, progress, few_rows=few_rows)
    _set_environment(chosen, settings)
    if not is_local(chosen):
        _require_master(chosen)
    settings |= {"spark.app.name": app, "spark.master": _with_retries(chosen)}
    spark = private.classic_session(settings, _gateway(settings, quick=quick))
    _require_executors(spark)
    _ship(spark, chosen)
    return _with_shuffles(spark)


def _answers(running: SparkSession) -> bool:
    """Whether a Connect server is there and knows the session.

    PySpark tries for minutes where nothing listens. A session of somebody else may have another way to its server.
    """
    address = private.connect_address(running)
    if address is not None and running in _given:
        try:
            socket.create_connection(address, MASTER_TIMEOUT_S).close()
        except OSError:
            return False
    return not private.is_stopped(running)


def _require_master_of(running: SparkSession, master: str | None) -> None:
    """Refuse to work on another cluster than the one that was asked for; a process has one session."""
    if master is None:
        return
    if private.is_connect(running):
        address = private.connect_address(running)
        at = "a Spark Connect server" + (f" at {address[0]}:{address[1]}" if address else "")
        same = master.startswith(CONNECT) and address in (None, _server_address(master))
    else:
        at = str(running.conf.get("spark.master"))
        same = master == at or (is_local(master) and is_local(at))
    if not same:
        raise PipelineError(
            f"this process has a Spark session on {at}, not on {master}: stop it before, or ask for no master"
        )


def _change_settings(spark: SparkSession, conf: Mapping[str, str]) -> None:
    """Refuse what is only taken where Spark is started: it would be ignored in silence."""
    for key, value in conf.items():
        if key == "spark.master" or spark.conf.get(key, None) == value:
            continue
        if not _takes(spark, key, value) and _given.get(spark, {}).get(key) != value:
            raise PipelineError(
                f"a running Spark cannot take {key}={value}: set it where this Spark is started, or leave it out"
            )


def _takes(spark: SparkSession, key: str, value: str) -> bool:
    if key.startswith(FIXED_SETTINGS):
        return False
    try:
        spark.conf.set(key, value)
    except PySparkException:
        return False
    return True


def _connected(server: str, app: str, conf: Mapping[str, str]) -> SparkSession:
    """A session on a Spark Connect server. Its own settings win, except where results depend on them."""
    _require_server(server)
    try:
        spark = SparkSession.builder.remote(server).appName(app).getOrCreate()
        for key, value in CONNECT_SETTINGS.items():
            if spark.conf.isModifiable(key):
                spark.conf.set(key, value)
        _ship(spark, server)
    except ImportError as error:
        raise PipelineError(
            f"Spark Connect needs more packages ({error}): {install_command('pipeline')}"
        ) from error
    except Exception as error:
        raise PipelineError(f"no session on the Spark Connect server {server}: {brief(error)}") from error
    _change_settings(spark, conf)
    return spark


def _require_server(server: str) -> None:
    """Fail soon when nothing listens: PySpark tries for minutes."""
    address = _server_address(server)
    try:
        socket.create_connection(address, MASTER_TIMEOUT_S).close()
    except OSError as error:
        raise PipelineError(f"no Spark Connect server answers at {server}: {error}") from error


def _server_address(server: str) -> tuple[str, int]:
    match = re.match(r"^sc://(?:\[([^\]]+)\]|([^:/;,\[]+))(?::(\d+))?(?:/|$)", server)
    if match is None:
        raise PipelineError(f"{server!r} is no address of a Spark Connect server: write sc://HOST:PORT")
    return match[1] or match[2], int(match[3] or CONNECT_PORT)


def _with_shuffles(spark: SparkSession) -> SparkSession:
    """Shuffle partitions by the cores of a cluster, unless the caller has chosen."""
    if not is_local(str(spark.conf.get("spark.master"))) and SHUFFLES not in spark.conf.getAll:
        spark.conf.set(SHUFFLES, str(TASKS_PER_CORE * parallelism(spark)))
    return spark


def _ship(spark: SparkSession, master: str) -> None:
    """Ship this package to executors on other machines.

    An executor that starts later fetches the file from here, so it stays until this process ends.
    """
    if not is_local(master):
        folder = tempfile.mkdtemp(prefix="unisono-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        spark.addArtifacts(str(pack(Path(folder) / "unisono.zip", compiled=True)), pyfile=True)


def _settings(
    master: str, conf: Mapping[str, str], progress: bool, *, few_rows: bool = False
) -> dict[str, str]:
    settings = {**SETTINGS, **(FEW_ROWS_SETTINGS if few_rows else {})}
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


def _as_submitted(words: list[str], master: str | None, app: str, conf: Mapping[str, str]) -> SparkSession:
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
    gateway = private.gateway_by_scripts(given)
    spark = private.submitted_session({**SETTINGS, "spark.app.name": app}, given, gateway)
    _require_executors(spark)
    _ship(spark, chosen)
    return spark


def _with_retries(master: str) -> str:
    match = _LOCAL_MASTER.match(master)
    return f"local[{match[1] or 1},{TASK_FAILURES_MAX}]" if match else master


def _require_master(master: str) -> None:
    match = re.match(r"^spark://([^:/,]+):(\d+)$", master)
    if match is None:
        return  # several masters, YARN, Kubernetes: left to Spark
    try:
        socket.create_connection((match[1], int(match[2])), MASTER_TIMEOUT_S).close()
    except OSError as error:
        raise PipelineError(f"no Spark master answers at {master}: {error}") from error


def _require_executors(spark: SparkSession) -> None:
    """Fail when a standalone master has no resources for executors: it would let the job wait for ever.

    Other masters queue applications on purpose, and with dynamic allocation executors start with the first tasks.
    """
    conf = spark.conf
    if not str(conf.get("spark.master")).startswith("spark://"):
        return
    if conf.get("spark.dynamicAllocation.enabled", "false") == "true":
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
