"""Time, processor time and memory of the driver, of Java and of Spark's Python workers while a step runs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.pipeline.processes import python_workers

from benchmarks.scale.results import Measured
from unisono.lake.errors import LakeError
from unisono.lake.lake import Lake

INTERVAL_S = 0.1


class Watch:
    """`java`: the process of a local Spark, whose workers are watched; None: only this process."""

    def __init__(self, java: int | None, lake: Lake | None = None) -> None:
        self._java = java
        self._lake = lake

    def measure(self, work: Callable[[], object], items: int = 0) -> Measured:
        ended = threading.Event()
        measured = Measured(0, items=items, load=os.getloadavg()[0])
        before, seen = self._cpu(), dict[int, float]()
        sampling = threading.Thread(target=self._sample, args=(measured, seen, ended))
        began = time.perf_counter()
        sampling.start()
        try:
            work()
        finally:
            measured.seconds = time.perf_counter() - began
            ended.set()
            sampling.join()
        measured.cpu = sum(cpu - before.get(pid, 0) for pid, cpu in seen.items())
        if self._lake is not None:
            measured.files, measured.bytes = lake_size(self._lake)
        return measured

    def _workers(self) -> list[int]:
        return [] if self._java is None else python_workers(self._java)

    def _sample(self, measured: Measured, seen: dict[int, float], ended: threading.Event) -> None:
        """`seen`: the processor time of each process, also of workers that end before the step does."""
        while True:
            seen.update(self._cpu())
            measured.driver_mb = max(measured.driver_mb, resident_mb(os.getpid()))
            if self._java is not None:
                measured.java_mb = max(measured.java_mb, resident_mb(self._java))
            measured.worker_mb = max([measured.worker_mb, *map(resident_mb, self._workers())])
            if ended.wait(INTERVAL_S):
                seen.update(self._cpu())
                return

    def _cpu(self) -> dict[int, float]:
        own = [os.getpid(), *([] if self._java is None else [self._java]), *self._workers()]
        return {pid: cpu for pid in own if (cpu := _cpu_s(pid))}


def lake_size(lake: Lake) -> tuple[int, int]:
    """Files and bytes that the tables name."""
    files = []
    for name in ("log", "by_partition", "snapshots"):
        try:
            table = lake.find(name)
        except LakeError:
            table = None
        files += [] if table is None else table.listed_files()
    return len(files), sum(file.bytes for file in files)


def resident_mb(pid: object) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next(
        (int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS")), 0.0
    )


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
