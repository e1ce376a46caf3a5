"""The private parts of PySpark in use, each with its reason, and all that needs a classic session. No other module
touches one.

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
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from unisono.pipeline.errors import PipelineError, brief

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_TIMEOUT_S: Final = 60.0
"""Java answers within seconds, or never."""

END_TIMEOUT_S: Final = 10.0
"""Java is killed after this time: it has only temporary files to remove."""

OWN_GROUP: Final[Mapping[str, Any]] = {"process_group": 0}
"""Java and its Python workers get a process group of their own: signals that a terminal or a supervisor sends to a
whole group reach only this process, which decides what to do.
"""


_CONNECT_MODE: Final = "SPARK_CONNECT_MODE_ENABLED"
"""Set by PySpark for the rest of a process in which there was a session of Spark Connect."""


def spark_home() -> Path:
    """Where Spark is installed. PySpark has no public function that follows SPARK_HOME as its scripts do."""
    from pyspark.find_spark_home import _find_spark_home

    return Path(_find_spark_home())


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is one of Spark Connect. The public `is_remote` answers for the process, not a session."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def connect_address(spark: SparkSession) -> tuple[str, int] | None:
    """The host and port of a session's Spark Connect server; None where its own way to connect does not tell. The
    public `client` names the host only."""
    client: Any = spark.client
    host, _, port = str(getattr(client._builder, "endpoint", "")).rpartition(":")
    return (host.strip("[]"), int(port)) if host else None


def running_session() -> SparkSession | None:
    """The running session, if any. One whose Java has ended is forgotten, for another to be made.

    The public `getOrCreate` would start one, or fail where Java has ended.
    """
    from pyspark.sql import SparkSession

    if _CONNECT_MODE in os.environ:
        return _running_connect_session()
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    if context is None:
        return None
    if getattr(context, "_jsc", None) is not None and _has_stopped(context):
        context._jsc = None  # there is nothing to stop but what Python has
        context.stop()
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        return None
    return SparkSession.builder.getOrCreate()


def _running_connect_session() -> SparkSession | None:
    """The active session is that of a thread, the default one that of the process."""
    from pyspark.sql.connect.session import SparkSession

    running: Any = SparkSession.getActiveSession() or SparkSession._get_default_session()
    return running  # type: ignore[no-any-return]


def forget_connect_session(spark: Any) -> None:
    """Stop a session whose server is gone. PySpark would try to tell it for minutes."""
    spark.release_session_on_close = False
    spark.stop()


def leave_connect() -> None:
    """Where no session of Spark Connect is left: let this process have a classic one, which PySpark would refuse."""
    os.environ.pop(_CONNECT_MODE, None)


def classic_session(settings: Mapping[str, str], gateway: Any) -> SparkSession:
    """Start a session in the Java process of a gateway. The session builder takes no gateway."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    try:
        SparkContext(conf=SparkConf().setAll(list(settings.items())), gateway=gateway)
    except Py4JError as error:
        raise PipelineError(
            f"Spark cannot be started on {settings['spark.master']}: {brief(error)}"
        ) from error
    return SparkSession.builder.getOrCreate()


def submitted_session(
    defaults: Mapping[str, str], conf: Mapping[str, str], gateway: Any = None
) -> SparkSession:
    """Start a session in the Java process of spark-submit, or of this gateway.

    Its settings win over `defaults`, and `conf` wins over them.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    SparkContext._ensure_initialized(
        gateway=gateway
    )  # a SparkConf made later has the settings of spark-submit
    chosen = SparkConf()
    for key, value in {**defaults, **conf}.items():
        if key in conf or not chosen.contains(key):
            chosen.set(key, value)
    SparkContext(conf=chosen)
    return SparkSession.builder.getOrCreate()


def default_parallelism(spark: SparkSession) -> int:
    """Of a classic session; no setting has it where Spark counts cores itself."""
    return int(spark.sparkContext.defaultParallelism)


def java_process(spark: SparkSession) -> Any:
    """The Java process that this process started (a Popen), None under spark-submit and for Spark Connect.

    Java must end before this process prints its last line; `SparkSession.stop` leaves it running.
    """
    return None if is_connect(spark) else getattr(spark.sparkContext._gateway, "proc", None)


def is_stopped(spark: SparkSession) -> bool:
    """Whether Java has stopped the session or has ended. The Python side does not notice either."""
    try:
        if is_connect(spark):
            spark.conf.get("spark.app.name", "")
            return False
    except Exception:  # gRPC raises several kinds when Java has ended
        return True
    return _has_stopped(spark.sparkContext)


def _has_stopped(context: Any) -> bool:
    try:
        return bool(context._jsc.sc().isStopped())
    except Exception:  # py4j raises several kinds when Java has ended
        return True


def executor_count(spark: SparkSession) -> int:
    """Registered executors. Python's status tracker shows jobs and stages only."""
    java: Any = spark.sparkContext._jsc
    return int(java.sc().getExecutorMemoryStatus().size()) - 1  # the driver counts as one


def be_silent(spark: SparkSession) -> None:
    """Before Java is ended: it would log unfinished tasks, and its open connection to the accumulator server would
    print a traceback.
    """
    with suppress(Exception):
        spark.sparkContext.setLogLevel("OFF")
    spark.sparkContext._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]


def gateway_by_scripts(settings: Mapping[str, str]) -> Any:
    """Start Java by Spark's own scripts. The public way, through SparkContext, puts Java in this process group."""
    from pyspark import SparkConf
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    _end_idle_java()
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

    _end_idle_java()
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


def _end_idle_java() -> None:
    """End the Java of a session that was stopped: PySpark would use it for the next, with its memory and options."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if gateway is None or SparkContext._active_spark_context is not None:
        return
    with suppress(Exception):
        gateway.shutdown()
    if (process := getattr(gateway, "proc", None)) is not None:
        with suppress(OSError):
            process.stdin.close()  # Java ends by itself then, and removes its temporary files
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    SparkContext._gateway = SparkContext._jvm = None


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
