from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.lake.s3 import object_store
from tests.pipeline.history import row_of
from unisono.lake.errors import CommitConflict, LakeUnusable
from unisono.lake.lake import Lake
from unisono.lake.storage import LOG, Storage
from unisono.pipeline.compare import verify
from unisono.pipeline.jobs.compact.job import compact, vacuum
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.spark.frames import read_log, read_partitions
from unisono.store.port import Record


@pytest.mark.soak
def test_a_lake_in_an_object_store(spark: SparkSession, store: str, records: list[Record]) -> None:
    with object_store() as options:
        lake = Lake.at("s3://lake/history", options)
        lake.make(buckets=4)
        for upto in (10, 3_000):
            export(spark, store, lake, to=upto, events_per_file=2_000)
        one, other = lake.table(LOG), lake.table(LOG)
        compact(spark, lake)
        assert [row for batch in lake.scan_arrow() for row in batch.to_pylist()] == [
            row_of(r) for r in records
        ]
        wanted = [r.committed_id for r in records if "room-007" in r.partitions]
        found = read_partitions(spark, lake, ["room-007"]).select("committed_id").collect()
        assert sorted(row.committed_id for row in found) == wanted
        assert read_log(spark, lake, 100, 200).count() == 100
        assert vacuum(lake, 0) > 0
        assert all(part.equal for part in verify(spark, store, lake))
        one.append([], 3_000, 3_001, {})
        with pytest.raises(CommitConflict):
            other.append([], 3_000, 3_002, {})


def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Storage.at("file:///data/la%20ke/").location == "/data/la ke"
    assert Storage.at("s3://bucket/a/").location == "s3://bucket/a"
    assert not Storage.at("s3://bucket/a").is_local
    assert Storage.at("/data/lake/").uri(LOG, "x.parquet") == "/data/lake/log/x.parquet"
    monkeypatch.chdir(tmp_path)
    assert Storage.at("./a:b#c?d 100%").location == f"{tmp_path}/a:b#c?d 100%"
    assert Storage.at("./a:b").is_local


@pytest.mark.parametrize("location", ["s3:/bucket/lake", "lake:1", "x://bucket/lake", "s3://", "s3:///a"])
def test_a_url_in_the_making(location: str) -> None:
    with pytest.raises(LakeUnusable, match="neither a directory nor a URL"):
        Storage.at(location)


@pytest.mark.parametrize(
    "location", ["file://lake", "file://data/lake", "file:///a?b", "file:///a#b", "file:"]
)
def test_file_urls_of_which_a_part_would_be_left_out(location: str) -> None:
    """Of file://lake the path is empty: it would be this directory."""
    with pytest.raises(LakeUnusable, match=r"is no directory's URL: write file:///"):
        Storage.at(location)


@pytest.mark.parametrize("location", ["s3://bucket/a#b", "s3://bucket/a?b=c", "s3://bucket//a", "s3://b/a//"])
def test_urls_of_which_delta_rs_takes_a_part(location: str) -> None:
    with pytest.raises(LakeUnusable, match="cannot be a lake's URL"):
        Storage.at(location)


@pytest.mark.parametrize("location", ["/data/a%20b", "file:///data/a%2520b", "back\\slash", "two\nlines"])
def test_names_that_delta_rs_takes_for_others(location: str) -> None:
    with pytest.raises(LakeUnusable, match="cannot be a lake's directory"):
        Storage.at(location)
