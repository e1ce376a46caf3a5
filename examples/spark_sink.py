"""Events from Spark into a running server, through its judgement.

    unisono serve --dev
    python examples/spark_sink.py ws://127.0.0.1:8080/sync unisono-data/dev-secret

Run it as often as you like: every event has an id, and the server commits an id once.
"""

import sys

from unisono.pipeline.spark.session import session
from unisono.pipeline.spark.source import UnisonoSource

url, secret_file = sys.argv[1:]
spark = session("local[*]", "sink")
spark.dataSource.register(UnisonoSource)

readings = spark.range(1_000).selectExpr(
    "concat('reading-', id) AS id",
    "array('sensors', concat('sensor-', id % 10)) AS partitions",
    "'note.added' AS schema",
    "to_json(named_struct('id', concat('r', id), 'text', format_string('%.1f', sin(id) * 20))) AS data",
)

(
    readings.write.format("unisono")
    .option("url", url)
    .option("jwt_secret_file", secret_file)
    .option("client_id", "sensors")
    .mode("append")
    .save()
)
