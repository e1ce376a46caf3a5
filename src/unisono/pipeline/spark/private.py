"""The private parts of PySpark in use, each with its reason. No other module touches one.

They are checked by `tests/pipeline/spark/` against the installed PySpark. A new PySpark version that changes one of
them breaks this file only.
"""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from unisono.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark import SparkContext

START_TIMEOUT_S: Final = 60.0
"""Java answers within seconds, or never."""

OWN_GROUP: Final[Mapping[str, Any]] = {"process_group": 0}
"""Java and its Python workers get a process group of their own: signals that a terminal or a supervisor sends to a
whole group reach only this process, which decides what to do.
"""


def spark_home() -> Path:
    """Where Spark is installed. PySpark has no public function that follows SPARK_HOME as its scripts do."""
    from pyspark.find_spark_home import _find_spark_home

    return Path(_find_spark_home())


def active_context() -> SparkContext | None:
    """The running context, if any. The public `SparkContext.getOrCreate` would start one."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context


def java_process(spark: SparkContext) -> Any:
    """The Java process that this process started (a Popen), None under spark-submit.

    Java must end before this process prints its last line; `SparkContext.stop` leaves it running.
    """
    return getattr(spark._gateway, "proc", None)


def is_stopped(spark: SparkContext) -> bool:
    """Whether Java has stopped the context or has ended. The Python side does not notice either."""
    try:
        java: Any = spark._jsc
        return bool(java.sc().isStopped())
    except Exception:  # py4j raises several kinds when Java has ended
        return True


def executor_count(spark: SparkContext) -> int:
    """Registered executors. Python's status tracker shows jobs and stages only."""
    java: Any = spark._jsc
    return int(java.sc().getExecutorMemoryStatus().size()) - 1  # the driver counts as one


def silence_accumulators(spark: SparkContext) -> None:
    """Before Java is ended: its open connection to the accumulator server would print a traceback."""
    spark._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]


def adopt_gateway(gateway: Any = None) -> None:
    """Use this gateway, or spark-submit's; a `SparkConf` made later has the settings that spark-submit was given."""
    from pyspark import SparkContext

    SparkContext._ensure_initialized(gateway=gateway)


def gateway_by_scripts(settings: Mapping[str, str]) -> Any:
    """Start Java by Spark's own scripts. The public way, through SparkContext, puts Java in this process group."""
    from pyspark import SparkConf
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    try:
        return launch_gateway(conf, popen_kwargs=dict(OWN_GROUP))  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as error:
        raise PipelineError("Spark's scripts could not start Java; their output is above") from error


def gateway_by_command(command: list[str]) -> Any:
    """Start Java by a prepared command, as Spark's scripts would, without running them: seconds sooner.

    Java ends when this process does, however it ends: it reads a pipe whose other end only this process has.
    """
    from pyspark.java_gateway import launch_gateway

    with tempfile.TemporaryDirectory(prefix="unisono-") as folder:
        answer = Path(folder) / "gateway"
        environment = {**os.environ, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer), "SPARK_CONNECT_MODE": "0"}
        process = subprocess.Popen(  # noqa: S603 (the command of Spark's launcher)
            command, stdin=subprocess.PIPE, env=environment, **OWN_GROUP
        )
        port, secret = _connection(process, answer)
    os.environ |= {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    try:
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
    gateway.proc = process
    return gateway


def _connection(process: subprocess.Popen[bytes], answer: Path) -> tuple[int, str]:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not answer.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.communicate()
            raise PipelineError(
                f"Java ended with code {process.returncode} before Spark was up; its output is above"
            )
        time.sleep(0.01)
    content = answer.read_bytes()
    port, length = struct.unpack_from("!ii", content)
    return port, content[8 : 8 + length].decode()


def launcher_words(spark_home: Path, java: Path, conf_dir: Path) -> list[str]:
    """The Java command that Spark's scripts run, from the launcher class that they ask for it."""
    jars = spark_home / "jars"
    core = next(jars.glob("spark-core_*.jar")).name
    environment = {
        **os.environ,
        "SPARK_HOME": str(spark_home),
        "SPARK_CONF_DIR": str(conf_dir),
        "SPARK_SCALA_VERSION": core.removeprefix("spark-core_").partition("-")[0],
        "JAVA_HOME": str(java),
    }
    command = [str(java / "bin" / "java"), "-Xmx128m", "-cp", f"{jars}/*"]
    command += ["org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit", "pyspark-shell"]
    done = subprocess.run(  # noqa: S603 (Spark's launcher, on the Java that was found)
        command, env=environment, capture_output=True, text=True, check=False
    )
    words = [word for word in done.stdout.replace("\n", "\0").split("\0") if word]
    if done.returncode != 0 or "-cp" not in words:
        raise PipelineError(f"Spark's launcher printed no command: {done.stderr.strip()[:500]}")
    return words
