"""A standalone Spark cluster of real processes: one master, some workers, from the installed package."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_port
from unisono.pipeline.spark import jvm, private

START_TIMEOUT_S = 60.0


class Cluster:
    """Its processes, and where the master listens."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder = folder
        self._home = private.spark_home()
        prepared = jvm.PreparedStart(self._home, jvm.java_home())
        self.settings = prepared.settings
        self.settings.mkdir(parents=True, exist_ok=True)
        self.java_options = [*prepared.java_options(), "-XX:TieredStopAtLevel=1"]
        self.conf = {
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": " ".join(self.java_options),
        }
        port = free_port()
        self.master = f"spark://127.0.0.1:{port}"
        own = ["--host", "127.0.0.1", "--webui-port", "0"]
        self.processes = [self._start("master.Master", "master", *own, "--port", str(port))]
        wait_for_port(port)
        for number in range(workers):
            place = ["--work-dir", str(folder / f"worker-{number}"), "--cores", "1", "--memory", "700m"]
            self.processes.append(self._start("worker.Worker", f"worker-{number}", *own, *place, self.master))

    def _start(self, name: str, log: str, *arguments: str) -> subprocess.Popen[bytes]:
        options = [*self.java_options, "-Dspark.master.rest.enabled=false"]
        environment = {
            **os.environ,
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONF_DIR": str(self.settings),
            "SPARK_DAEMON_JAVA_OPTS": " ".join(options),
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }
        with (self._folder / f"{log}.log").open("wb") as output:
            return subprocess.Popen(
                [self._home / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def options(self, option: str) -> list[str]:
        """What a command needs to run here, as `--spark-conf K=V` or `--conf K=V`."""
        return [word for key, value in self.conf.items() for word in (option, f"{key}={value}")]

    def submit(self, package: Path, script: Path, *arguments: str) -> subprocess.Popen[str]:
        """A script with a package for the executors, by spark-submit."""
        return subprocess.Popen(
            [
                Path(sys.executable).parent / "spark-submit", "--master", self.master, "--py-files", package,
                *self.options("--conf"), "--driver-java-options", " ".join(self.java_options), script, *arguments,
            ],
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_CONF_DIR": str(self.settings),
            },
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def executors(self) -> list[int]:
        """The process ids of the executors that run on this cluster's workers."""
        return [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and self._is_executor(entry)
        ]

    def _is_executor(self, process: Path) -> bool:
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            place = str((process / "cwd").readlink())
        except OSError:
            return False
        return b"org.apache.spark.executor.CoarseGrainedExecutorBackend" in words and place.startswith(
            str(self._folder)
        )

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait()


@contextmanager
def running_cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(folder, workers)
    try:
        yield cluster
    finally:
        cluster.stop()


def wait_for_port(port: int, process: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > deadline or (process is not None and process.poll() is not None):
                raise
            time.sleep(0.05)
        else:
            return
