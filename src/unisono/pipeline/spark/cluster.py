"""Checks on a cluster: whether executors see what the driver sees."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

from unisono.pipeline.errors import NoSuchStore, StoreNotVisible
from unisono.pipeline.open_log import open_reader, sqlite_directory
from unisono.pipeline.spark.executors import parallelism, run_on_executors
from unisono.pipeline.spark.private import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROBES_PER_CORE: Final = 2
"""Probes per core, so that very likely every executor gets one."""

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


def require_visible(spark: SparkSession, store: str) -> None:
    """Refuse an embedded log that executors cannot read safely.

    SQLite's readers and writer share memory, so they must be on one machine: over a network file system, reads beside
    a writing server can be wrong.
    """
    directory = sqlite_directory(store)
    if directory is None:
        return
    if not is_connect(spark) and str(spark.conf.get("spark.master")).startswith("local"):
        return
    probes = [store] * (PROBES_PER_CORE * parallelism(spark))
    answers = run_on_executors(spark, probes, _probe)
    advice = "use a PostgreSQL store, or --master local[*]"
    for host, boot, problem in answers:
        if problem:
            raise StoreNotVisible(
                f"the executor on {host} cannot read the log in {directory} ({problem}): {advice}"
            )
        if boot != boot_id():
            raise StoreNotVisible(
                f"the executor on {host} runs on another machine, and the embedded log in {directory} "
                f"can only be read on its own: {advice}"
            )


def _probe(store: str) -> tuple[str, str, str]:
    """On an executor: its host, its boot, and why it cannot read the log."""
    try:
        open_reader(store).close()
        problem = ""
    except NoSuchStore as error:
        problem = str(error)
    return socket.gethostname(), boot_id(), problem


def boot_id() -> str:
    """Identifies a machine since its boot; empty where the system has none."""
    try:
        return _BOOT.read_text("ascii").strip()
    except OSError:
        return ""
