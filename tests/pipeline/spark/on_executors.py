"""Functions that tests run on executors, where the test files themselves cannot be imported."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from unisono.lake.errors import LakeUnusable
from unisono.pipeline.errors import Mismatch


def place_and_size(task: tuple[int, bytes]) -> tuple[int, int, int]:
    """The number of a task, the Spark partition that it is in, and its size."""
    context = TaskContext.get()
    assert context is not None
    return task[0], context.partitionId(), len(task[1])


def differ(task: str) -> None:
    raise Mismatch(f"event {task} differs\nin two lines")


def unusable(task: str) -> None:
    try:
        raise ValueError(f"no {task} here")
    except ValueError as error:
        raise LakeUnusable("the lake is damaged: restore it") from error


def unknown_error(task: str) -> None:
    raise RuntimeError(f"out of {task}")


def die_once(marker: str) -> str:
    """kill -9 of the worker that gets the task first."""
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return f"survived {Path(marker).name}"


def add(shared: dict[str, int], task: str) -> int:
    return shared[task] + 1


def doubled(task: int) -> Iterator[pa.RecordBatch]:
    for _ in range(2):
        yield pa.RecordBatch.from_pydict({"number": pa.array([task], pa.int64())})
