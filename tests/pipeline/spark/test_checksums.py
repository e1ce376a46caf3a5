"""Damage in the lake's files, read through Spark: the rows that were written, or an error, in anybody's session."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.commands import unisono
from tests.lake.lakes import export_to
from tests.pipeline.history import Row, make_store, row_of
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, LOG
from unisono.pipeline.spark import jvm, private
from unisono.pipeline.spark.frames import read_log, read_partitions
from unisono.pipeline.spark.jvm import PreparedStart
from unisono.pipeline.spark.session import SETTINGS
from unisono.store.port import Record

EVENTS = 400
FLIPS = 12
VERIFYING = "spark.hadoop.parquet.page.verify-checksum.enabled"


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lake, list[Record]]:
    folder = tmp_path_factory.mktemp("checksums")
    records = make_store(folder / "data", EVENTS)
    lake = Lake.at(str(folder / "lake"))
    export_to(lake, folder / "data")
    return lake, records


def pages(path: Path) -> tuple[int, int]:
    """From where to where a file holds pages."""
    metadata = pq.read_metadata(path)
    columns = [metadata.row_group(0).column(number) for number in range(metadata.num_columns)]
    starts = [column.dictionary_page_offset or column.data_page_offset for column in columns]
    return min(starts), max(
        start + column.total_compressed_size for start, column in zip(starts, columns, strict=True)
    )


def flips(lake: Lake, table: str, seed: str) -> Iterator[int]:
    """A file of the table with one bit flipped, again and again; where. Half of them anywhere, half within pages."""
    view = lake.view()
    (file,) = view.log_files if table == LOG else view.partition_files
    path, chance = Path(lake.storage.uri(table, file.path)), random.Random(seed)
    content = path.read_bytes()
    first, last = pages(path)
    try:
        for number in range(FLIPS):
            place = chance.randrange(first, last) if number % 2 else chance.randrange(len(content))
            damaged = bytearray(content)
            damaged[place] ^= 1 << chance.randrange(8)
            path.write_bytes(damaged)
            yield place
    finally:
        path.write_bytes(content)


def test_every_session_of_ours_verifies(spark: SparkSession) -> None:
    assert SETTINGS[VERIFYING] == "true"
    assert spark.conf.get(VERIFYING) == "true"


@pytest.mark.req("DUR-06")
@pytest.mark.parametrize("table", [LOG, pytest.param(BY_PARTITION, marks=pytest.mark.soak)])
def test_read_through_spark(
    spark: SparkSession, ready: tuple[Lake, list[Record]], table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a session that verifies nothing and passes over damaged files, as somebody else's may."""
    lake, records = ready
    read: Callable[[SparkSession, Lake], object] = read_log if table == LOG else read_partitions
    expected = sorted(
        (row_of(record) for record in records)
        if table == LOG
        else ({"partition": name, **row_of(record)} for record in records for name in record.partitions),
        key=_key,
    )
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set("parquet.page.verify-checksum.enabled", "false")
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    failed = 0
    try:
        assert _rows(read, spark, lake) == expected
        for place in flips(lake, table, table):
            try:
                found = _rows(read, spark, lake)
            except Exception:
                failed += 1
                continue
            assert found == expected, f"a bit flipped in byte {place} gives other rows"
    finally:
        hadoop.set("parquet.page.verify-checksum.enabled", "true")
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
    assert failed > FLIPS // 2


def _key(row: Row) -> tuple[str, int]:
    return row.get("partition", ""), row["committed_id"]


def _rows(read: Callable[..., object], spark: SparkSession, lake: Lake) -> list[Row]:
    frame = read(spark, lake)
    rows = [row.asDict() for row in frame.collect()]  # type: ignore[attr-defined]
    for row in rows:
        row["hash"] = bytes(row["hash"])
    return sorted(rows, key=_key)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_the_report(spark: SparkSession, ready: tuple[Lake, list[Record]], tmp_path: Path) -> None:
    lake, _ = ready

    def made(name: str) -> dict[str, object] | None:
        out = tmp_path / name
        told = unisono("lake", "report", "--lake", lake.storage.location, "--out", str(out), "--quiet")
        if told.exit_code:
            return None
        return {path.name: pq.read_table(path).to_pylist() for path in sorted(out.rglob("*.parquet"))}

    sound = made("sound")
    assert sound
    for number in range(4):  # the first that a report notices is enough: the others gave the same figures
        for place in _one(lake, f"report {number}"):
            found = made(f"damaged {number}")
            assert found is None or found == sound, f"a bit flipped in byte {place} gives another report"
        if found is None:
            return
    pytest.fail("none of the damage was noticed")


def _one(lake: Lake, seed: str) -> Iterator[int]:
    damaged = flips(lake, LOG, seed)
    next(damaged)
    yield next(damaged)
    damaged.close()  # type: ignore[attr-defined]


OWN_SESSION = """
import sys
from pyspark.sql import SparkSession
from unisono.pipeline.spark.frames import read_log
from unisono.lake.lake import Lake
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = spark.config("spark.driver.extraJavaOptions", sys.argv[2]).getOrCreate()
assert spark.conf.get("spark.hadoop.parquet.page.verify-checksum.enabled", "unset") == "unset"
read_log(spark, Lake.at(sys.argv[1])).toPandas()
"""


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_session_that_somebody_else_made(ready: tuple[Lake, list[Record]]) -> None:
    lake, _ = ready
    prepared = PreparedStart(private.spark_home(), jvm.java_home())
    options = " ".join([*prepared.java_options(), "-XX:TieredStopAtLevel=1"])
    for _ in _one(lake, "own session"):
        done = subprocess.run(
            [sys.executable, "-c", OWN_SESSION, lake.storage.location, options],
            env={**os.environ, "SPARK_CONF_DIR": str(prepared.settings), "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode != 0
        assert "checksum" in done.stderr.lower()
