"""Rows whose id an earlier row has, found on Spark: only what is compared is exchanged, 48 bytes a row.

The driver and Spark see no ids and no contents here, but 16 bytes of a hash of each, which are the same for two texts
only if somebody spends 2^64 steps on it. A row is named by its *source*, which is the number of its split and its row
number in one number, so sources are in the order of files and rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from struct import unpack
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from unisono.pipeline.errors import PipelineError
from unisono.pipeline.spark.plans import show_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAST: Final = 2**62
"""Sorts behind every id and every time."""

ROW_BITS: Final = 40
"""Bits of a source for the row: a file has fewer than a trillion rows, and an import fewer than 8 million splits."""

KEY_SCHEMA: Final = pa.schema(
    [
        pa.field(name, pa.int64())
        for name in ("source", "id_high", "id_low", "content_high", "content_low", "committed_id", "time")
    ]
)
"""What is compared of a row."""

Repeats = dict[int, tuple[int, bool]]
"""By row: the source of the first row with its id, and whether that has the same content."""


def source_of(split: int, row: int) -> int:
    return split << ROW_BITS | row


def split_and_row(source: int) -> tuple[int, int]:
    return source >> ROW_BITS, source & ((1 << ROW_BITS) - 1)


def key_batch(
    split: int, rows: Sequence[int], ids: Sequence[str], hashes: Sequence[bytes], *order: Sequence[int | None]
) -> Any:
    """What is compared of some rows; `order` are their committed ids and times."""
    of_ids = unpack(
        f">{2 * len(ids)}q", b"".join([blake2b(id.encode(), digest_size=16).digest() for id in ids])
    )
    of_contents = unpack(f">{2 * len(hashes)}q", b"".join([hash[:16] for hash in hashes]))
    columns: list[Sequence[int | None]] = [
        [source_of(split, row) for row in rows],
        of_ids[::2],
        of_ids[1::2],
        of_contents[::2],
        of_contents[1::2],
        *order,
    ]
    return pa.RecordBatch.from_arrays([pa.array(column, pa.int64()) for column in columns], schema=KEY_SCHEMA)


def find_repeats(
    spark: SparkSession, keys: Sequence[str], order: str | None, folder: Path, files: int
) -> None:
    """Write the rows of `keys` that have the id of an earlier one to `folder`, the splits modulo `files` each into
    the file of that number. `order` is the column that comes before files and rows, None for none."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    same_id = Window.partitionBy("id_high", "id_low").orderBy("key", "source")
    frame = (
        keyed(spark, keys, order)
        .drop("committed_id", "time")
        .withColumn("first", F.first(F.struct("source", "content_high", "content_low")).over(same_id))
    )
    same = "first.content_high = content_high AND first.content_low = content_low AS same"
    frame = frame.where("first.source <> source").selectExpr("source", "first.source AS first", same)
    write_by_split(frame, folder, files, "import.repeats")


def keyed(spark: SparkSession, keys: Sequence[str], order: str | None) -> DataFrame:
    """The rows of `keys` with a `key`, by which they are ordered before `source`: `order`, or all equal."""
    from pyspark.sql import functions as F  # noqa: N812

    key = F.lit(0).cast("bigint") if order is None else F.coalesce(F.col(order), F.lit(LAST))
    return spark.read.parquet(*keys).withColumn("key", key)


def write_by_split(frame: DataFrame, folder: Path, files: int, name: str) -> None:
    """Write rows with a `source`, the splits modulo `files` each into the file of that number."""
    from pyspark.sql import functions as F  # noqa: N812

    split = F.shiftright("source", ROW_BITS)
    frame = frame.repartitionById(files, F.pmod(split, F.lit(files)).cast("int"))
    frame = frame.sortWithinPartitions("source")
    show_plan(name, frame)
    frame.write.parquet(str(folder))


def read_repeats(folder: str, files: int, split: int) -> Repeats:
    """The repeats of one split; on an executor."""
    return {row: (first, same) for row, first, same in rows_of_split(folder, files, split)}


def rows_of_split(folder: str, files: int, split: int) -> Iterator[tuple[Any, ...]]:
    """What `write_by_split` wrote of one split, each with its row number instead of its source."""
    number = split % files
    for path in Path(folder).glob(f"part-{number:05d}-*.parquet"):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches():
                source = batch.column("source")
                if ((source.to_numpy() >> ROW_BITS) % files != number).any():
                    # Every file is read by the tasks of its splits, so no repeat is missed without notice.
                    raise PipelineError(
                        f"{path} has rows of other splits: Spark has divided the work in another way than asked for; "
                        "run this with spark.sql.adaptive.enabled=false"
                    )
                from_split = pc.greater_equal(source, source_of(split, 0))
                own = batch.filter(pc.and_(from_split, pc.less(source, source_of(split + 1, 0))))
                for place, *told in zip(*(column.to_pylist() for column in own.columns), strict=True):
                    yield split_and_row(place)[1], *told
