"""Checks on a cluster: whether executors see what the driver sees."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from unisono.pipeline.errors import NoSuchStore, StoreNotVisible
from unisono.pipeline.open_log import open_reader, sqlite_directory

if TYPE_CHECKING:
    from pyspark import SparkContext

PROBES_PER_CORE: Final = 2
"""Probes per core, so that very likely every executor gets one."""

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


def require_visible(spark: SparkContext, store: str) -> None:
    """Refuse an embedded log that executors cannot read safely.

    SQLite's readers and writer share memory, so they must be on one machine: over a network file system, reads beside
    a writing server can be wrong.
    """
    directory = sqlite_directory(store)
    if directory is None or str(spark.master).startswith("local"):
        return
    probes = PROBES_PER_CORE * max(1, spark.defaultParallelism)
    answers = spark.parallelize(range(probes), probes).mapPartitions(_Probe(store)).collect()
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


class _Probe:
    def __init__(self, store: str) -> None:
        self._store = store

    def __call__(self, _: Iterable[int]) -> Iterator[tuple[str, str, str]]:
        try:
            open_reader(self._store).close()
            problem = ""
        except NoSuchStore as error:
            problem = str(error)
        yield socket.gethostname(), boot_id(), problem


def boot_id() -> str:
    """Identifies a machine since its boot; empty where the system has none."""
    try:
        return _BOOT.read_text("ascii").strip()
    except OSError:
        return ""
