"""One Spark session for all tests of the pipeline, and one history to read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.history import make_store
from unisono.pipeline.open_log import sqlite_uri
from unisono.pipeline.spark.private import java_process
from unisono.pipeline.spark.session import session
from unisono.pipeline.spark.source import UnisonoSource
from unisono.pipeline.spark.warmup import prepare
from unisono.store.port import Record

FEW_ROWS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.extraJavaOptions": "-Dtests=yes",  # which Spark adds to
}
"""For queries over some thousand rows: compiling one takes longer than all its rows. Commands of their own, on a
cluster and on this machine, run with the settings that users have.
"""


@pytest.fixture(scope="session", autouse=True)
def _quick_starts() -> None:
    """Half a minute once per installation; afterwards every Spark of these tests starts in a third of the time."""
    prepare()


@pytest.fixture(scope="session")
def spark(_quick_starts: None) -> Iterator[SparkSession]:
    started = session("local[2]", "unisono tests", conf=FEW_ROWS, quick=True)
    started.dataSource.register(UnisonoSource)
    yield started
    process = java_process(started)
    started.stop()
    process.stdin.close()
    process.wait(30)


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    """A data directory that nobody writes to any more, and the records in it."""
    directory = tmp_path_factory.mktemp("history")
    return directory, make_store(directory, 3_000)


@pytest.fixture(scope="session")
def store(history: tuple[Path, list[Record]]) -> str:
    return sqlite_uri(history[0])


@pytest.fixture(scope="session")
def records(history: tuple[Path, list[Record]]) -> list[Record]:
    return history[1]
