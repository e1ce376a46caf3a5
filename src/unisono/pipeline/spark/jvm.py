"""The Java process of a Spark session: finds Java, and starts it fast where that is prepared.

`python -m unisono.pipeline.spark.warmup` writes to a cache directory, per pair of Spark and Java: the command line of
Spark's launcher (which then need not run each time) and an archive of loaded classes (AppCDS). Without them, or when
the environment changes what they depend on, Spark's scripts start Java, some seconds slower.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from unisono.pipeline.errors import NoJava
from unisono.pipeline.spark import private

JAVA_MIN: Final = 17
"""The oldest Java for Spark 4."""

CACHE_VARIABLE: Final = "UNISONO_CACHE_DIR"

INSTALL_JAVA: Final = (
    "install one (Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17; "
    "conda: conda install openjdk=17) or set JAVA_HOME"
)

QUIET: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %p %c{1}: %m%n%ex{short}
# The same level as above, or Spark announces that it changes it.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
# Logged for every retried task, with a stack trace; the job's own error has the cause.
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
# Raised where the session is started.
logger.context.name = org.apache.spark.SparkContext
logger.context.level = off
logger.scheduler.name = org.apache.spark.scheduler
logger.scheduler.level = off
# A stream that ends by an error raises it where it was started.
logger.stream.name = org.apache.spark.sql.execution.streaming
logger.stream.level = off
"""

_CHANGES_COMMAND: Final = (
    "SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH", "SPARK_SUBMIT_OPTS",
    "SPARK_PREPEND_CLASSES", "SPARK_SUBMIT_LIBRARY_PATH",
)  # fmt: skip
_SCRIPTS_ONLY: Final = (
    "spark.jars",
    "spark.files",
    "spark.archives",
    "spark.submit",
    "spark.driver.extraClassPath",
    "spark.driver.extraLibraryPath",
    "spark.driver.defaultJavaOptions",
    "spark.driver.userClassPathFirst",
    "spark.kerberos",
    "spark.yarn",
    "spark.kubernetes",
    "spark.launcher",
    "spark.remote",
    "spark.api.mode",
)
"""Settings, and prefixes of settings, that only Spark's scripts handle, before Java starts."""

_READ_BY_SCRIPTS: Final = ("spark-env.sh", "spark-defaults.conf")
"""Files in Spark's own `conf`, which only its scripts read."""


class Launch(msgspec.Struct, frozen=True):
    """The command of Spark's launcher: class path and Java options, without memory and user options."""

    java: str
    classpath: str
    options: list[str]


def java_home() -> Path:
    """The Java for Spark; NoJava says what to install."""
    if home := os.environ.get("JAVA_HOME"):
        if not (Path(home) / "bin" / "java").is_file():
            raise NoJava(f"JAVA_HOME is {home}, and there is no bin/java in it: {INSTALL_JAVA}")
        return Path(home).resolve()
    found = shutil.which("java")
    if found is None:
        raise NoJava(f"Spark needs Java {JAVA_MIN} or newer and there is none: {INSTALL_JAVA}")
    return Path(found).resolve().parent.parent


def java_version(home: Path) -> str:
    """As in `17.0.15`; from the `release` file, because running Java takes longer."""
    try:
        text = (home / "release").read_text("utf-8")
    except OSError:
        text = _ask_version(home).replace('version "', 'JAVA_VERSION="')
    match = re.search(r'JAVA_VERSION="([^"]+)"', text)
    if match is None:
        raise NoJava(f"unknown Java version in {home}: {INSTALL_JAVA}")
    major = re.match(r"\d+", match[1].removeprefix("1."))
    if major is None or int(major[0]) < JAVA_MIN:
        raise NoJava(f"{home} is Java {match[1]} and Spark needs {JAVA_MIN} or newer: {INSTALL_JAVA}")
    return match[1]


def _ask_version(home: Path) -> str:
    try:
        return subprocess.run(  # noqa: S603 (the Java that was found)
            [home / "bin" / "java", "-version"], capture_output=True, text=True, check=False
        ).stderr
    except OSError as error:
        raise NoJava(f"the Java in {home} cannot be run ({error}): {INSTALL_JAVA}") from error


def cache_directory() -> Path:
    """In the virtual environment, if there is one, else in the user's cache."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen)
    if sys.prefix != sys.base_prefix:
        return Path(sys.prefix) / "var" / "cache" / "unisono"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unisono"


class PreparedStart:
    """The prepared start for one Spark and one Java; parts may be missing."""

    def __init__(self, spark_home: Path, java: Path) -> None:
        from pyspark.version import __version__ as spark_version

        place = hashlib.sha256(f"{spark_home}\n{java}".encode()).hexdigest()[:8]
        key = f"spark-{spark_version}-java-{java_version(java)}-{platform.machine()}-{place}"
        self.directory = cache_directory() / key
        self.archive = self.directory / "classes.jsa"
        self.logging = self.directory / "log4j2.properties"
        self.settings = self.directory / "conf"
        self._launch = self.directory / "launch.json"
        self._read_by_scripts = [spark_home / "conf" / name for name in _READ_BY_SCRIPTS]

    def launch(self, conf: Mapping[str, str]) -> Launch | None:
        """The prepared command line; None when only Spark's scripts can apply the settings."""
        if any(name in os.environ for name in _CHANGES_COMMAND) or any(map(_is_for_scripts, conf)):
            return None
        if any(path.exists() for path in self._read_by_scripts):
            return None
        try:
            return msgspec.json.decode(self._launch.read_bytes(), type=Launch)
        except (OSError, msgspec.MsgspecError):
            return None

    def _quiet_logging(self) -> Path:
        """The configuration of Java's logging; a temporary file where the cache cannot be written."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if not self.logging.is_file() or self.logging.read_text("utf-8") != QUIET:
                _written(QUIET, self.directory).replace(self.logging)
        except OSError:
            own = _written(QUIET)
            atexit.register(own.unlink, missing_ok=True)
            return own
        return self.logging

    def keep(self, launch: Launch) -> None:
        self._launch.write_bytes(msgspec.json.encode(launch))

    def java_options(self) -> list[str]:
        """Java options for a quiet start, and a fast one if prepared."""
        options = [f"-Dlog4j2.configurationFile={self._quiet_logging().as_uri()}"]
        if self.archive.is_file():
            # auto: an archive that does not match is ignored. Java would report it on stdout.
            options += [
                "-Xshare:auto",
                f"-XX:SharedArchiveFile={self.archive}",
                "-Xlog:cds=off",
                "-Xlog:disable",
            ]
        return options


def _is_for_scripts(setting: str) -> bool:
    return any(setting == name or setting.startswith(f"{name}.") for name in _SCRIPTS_ONLY)


def _written(text: str, directory: Path | None = None) -> Path:
    with tempfile.NamedTemporaryFile(
        "w", suffix=".properties", dir=directory, delete=False, encoding="utf-8"
    ) as file:
        file.write(text)
    return Path(file.name)


def start(launch: Launch, options: list[str], memory: str) -> Any:
    """Start Java by a prepared command: a gateway for a session."""
    command = [launch.java, "-cp", launch.classpath, f"-Xmx{memory}", *launch.options, *options]
    return private.gateway_by_command([*command, "org.apache.spark.deploy.SparkSubmit", "pyspark-shell"])
