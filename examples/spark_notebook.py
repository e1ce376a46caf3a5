# %% [markdown]
# # The log in a Spark notebook
#
# Cells as in any notebook (`# %%`). Run it on the data directory of a server, running or not:
#
#     python examples/spark_notebook.py unisono-data
#
# The server notices nothing: reading never delays it.

# %%
# ruff: noqa: T201
import sys

from pyspark.sql import functions as f

from unisono.pipeline.spark.session import session
from unisono.pipeline.spark.source import UnisonoSource

store = f"sqlite:{sys.argv[1] if len(sys.argv) > 1 else 'unisono-data'}"

# `session` has our settings; in a notebook that brings its own `spark`, leave it out.
spark = session("local[*]", "notebook")
spark.dataSource.register(UnisonoSource)

# %% [markdown]
# ## Everything, as a DataFrame
# A DataFrame is the log as it was when `load` was called; executors read ranges of `committed_id` side by side.

# %%
log = spark.read.format("unisono").option("store", store).load()
log.printSchema()
print("events:", log.count())

# %% [markdown]
# ## What kinds of events are there?

# %%
kinds = log.groupBy("type", "schema").count().orderBy(f.desc("count"), "type", "schema")
kinds.show(truncate=False)

# %% [markdown]
# ## The history of one partition
# With the option `partitions` only its events are read, by the log's own index. JSON inside `event` is text, or a
# variant when you want to look into it.

# %%
busiest = log.select(f.explode("partitions").alias("partition")).groupBy("partition").count()
name = busiest.orderBy(f.desc("count"), "partition").first()["partition"]
history = (
    spark.read.format("unisono")
    .option("store", store)
    .option("partitions", name)
    .load()
    .withColumn("payload", f.parse_json("event"))
    .withColumn("kind", f.expr("variant_get(payload, '$.type', 'string')"))
    .select("committed_id", "committed_at", "client_id", "kind")
    .orderBy("committed_id")
)
print("history of", name)
history.show(5, truncate=False)

# %% [markdown]
# ## A stream
# The offset of a stream is the `committed_id` it has reached. This one reads what is there and ends; without
# `availableNow` it goes on with what the server commits.

# %%
stream = (
    spark.readStream.format("unisono").option("store", store).option("max_events_per_batch", 50_000).load()
)
counts = stream.groupBy("client_id").agg(f.count("*").alias("events"), f.max("committed_id").alias("last"))
query = (
    counts.writeStream.format("memory")
    .queryName("clients")
    .outputMode("complete")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
spark.table("clients").orderBy(f.desc("events"), "client_id").show(5)
print("streamed:", spark.table("clients").agg(f.sum("events")).first()[0])
