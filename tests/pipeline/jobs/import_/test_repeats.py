"""Rows with the id of an earlier one: found in whatever order rows are, and given to their split."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from unisono.pipeline.errors import PipelineError
from unisono.pipeline.jobs.import_.repeats import (
    KEY_SCHEMA,
    LAST,
    Repeats,
    find_repeats,
    key_batch,
    read_repeats,
    source_of,
    split_and_row,
)

SPLITS, ROWS, FILES = 7, 60, 3


def test_sources_are_in_the_order_of_splits_and_rows() -> None:
    places = [(0, 1), (0, 2**40 - 1), (1, 1), (8_000_000, 5)]
    sources = [source_of(*place) for place in places]
    assert sources == sorted(sources)
    assert [split_and_row(source) for source in sources] == places
    assert sources[-1] < 2**63


@pytest.mark.parametrize("order", ["committed_id", "time", None])
def test_every_repeat_is_found(spark: SparkSession, tmp_path: Path, order: str | None) -> None:
    chance = random.Random(3)
    keys, places = [], []
    for split in range(SPLITS):
        rows = list(range(split * 10 + 1, split * 10 + 1 + ROWS))
        ids = [f"e{chance.randrange(250)}" for _ in rows]
        hashes = [hashlib.sha256(b"%d" % chance.randrange(2)).digest() for _ in rows]
        committed_ids = [chance.choice([None, chance.randrange(1, 500)]) for _ in rows]
        times = [chance.choice([None, 5, chance.randrange(1, 500)]) for _ in rows]
        keys.append(str(tmp_path / f"{split}.parquet"))
        with pq.ParquetWriter(keys[-1], KEY_SCHEMA) as writer:
            writer.write_batch(key_batch(split, rows, ids, hashes, committed_ids, times))
        for row, id, hash, committed_id, time in zip(rows, ids, hashes, committed_ids, times, strict=True):
            key = {"committed_id": committed_id, "time": time, None: 0}[order]
            places.append((LAST if key is None else key, split, row, id, hash))
    wanted: list[Repeats] = [{} for _ in range(SPLITS)]
    first: dict[str, tuple[int, bytes]] = {}
    for _, split, row, id, hash in sorted(places):
        source = source_of(split, row)
        before, content = first.setdefault(id, (source, hash))
        if before != source:
            wanted[split][row] = before, content == hash
    find_repeats(spark, keys, order, tmp_path / "repeats", FILES)
    found = [read_repeats(str(tmp_path / "repeats"), FILES, split) for split in range(SPLITS)]
    assert found == wanted
    assert {same for some in found for _, same in some.values()} == {True, False}


def test_repeats_in_the_file_of_another_split_are_noticed(tmp_path: Path) -> None:
    """As if Spark had put the rows of several tasks into one file."""
    sources = [source_of(0, 4), source_of(1, 2)]
    rows = pa.table({"source": sources, "first": [1, 1], "same": [True, True]})
    pq.write_table(rows, tmp_path / "part-00000-x.parquet")
    assert read_repeats(str(tmp_path), 1, 0) == {4: (1, True)}
    with pytest.raises(PipelineError, match="has rows of other splits"):
        read_repeats(str(tmp_path), 2, 0)
    assert read_repeats(str(tmp_path), 2, 1) == {}
