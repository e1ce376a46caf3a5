"""A driver that writes a directory of Parquet files as a stream into a server: `ROWS CHECKPOINT URL SECRET_FILE`."""

from __future__ import annotations

import sys

from unisono import pipeline


def main(rows: str, checkpoint: str, url: str, secret_file: str) -> None:
    spark = pipeline.session("local[2]", "stream", quick=True, few_rows=True)
    pipeline.register(spark)
    schema = spark.read.parquet(rows).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(rows)
    query = (
        stream.writeStream.format("unisono")
        .option("url", url)
        .option("jwt_secret_file", secret_file)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
