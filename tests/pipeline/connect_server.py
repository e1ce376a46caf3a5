"""A Spark Connect server as a real process, from the installed package."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.pipeline.cluster import wait_for_port
from tests.ports import free_port
from unisono.pipeline.spark import jvm, private


@contextmanager
def running_connect_server(folder: Path, cores: int = 2, port: int | None = None) -> Iterator[str]:
    """Its address; it listens on this machine only."""
    home, port = private.spark_home(), port or free_port()
    prepared = jvm.PreparedStart(home, jvm.java_home())
    prepared.settings.mkdir(parents=True, exist_ok=True)
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
    }
    options = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    java_options = " ".join([*prepared.java_options(), "-XX:TieredStopAtLevel=1"])
    with (folder / "connect.log").open("wb") as output:
        server = subprocess.Popen(
            [
                home / "bin" / "spark-submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
                "--master", f"local[{cores},4]", "--driver-memory", "1g", "--driver-java-options", java_options,
                *options, "spark-internal",
            ],
            env={
                **os.environ,
                "SPARK_HOME": str(home),
                "SPARK_CONF_DIR": str(prepared.settings),
                "SPARK_CONNECT_MODE": "0",
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": str(Path(__file__).parents[2]),  # functions of tests that run on executors
            },
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )  # fmt: skip
    try:
        wait_for_port(port, server)
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
