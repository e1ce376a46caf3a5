"""Reading a lake in Python, with Spark and without: python examples/lake_reading.py LAKE PARTITION"""

# ruff: noqa: T201

import sys

from unisono.lake.lake import Lake
from unisono.pipeline.spark.frames import read_log, read_partitions
from unisono.pipeline.spark.session import session

location, partition = sys.argv[1:]
spark = session()

lake = Lake.at(location)  # a directory, or "s3://bucket/lake" and {"aws_region": "…"}
view = lake.view()  # the lake at one moment; `lake` itself answers from the newest each time
newest = read_log(spark, view, since=max(0, view.head - 1_000))  # a DataFrame, the columns of log
own = read_partitions(spark, view, [partition])  # a DataFrame, with the column partition
first = view.scan_arrow([partition], limit=500)  # record batches without Spark, ascending, each event once

print(
    f"{view.head} events in the lake, {own.count()} in {partition}; of the newest {newest.count()} were read"
)
print(f"the first {sum(batch.num_rows for batch in first)} were read without Spark")
