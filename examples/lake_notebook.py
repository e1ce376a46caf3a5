# %% [markdown]
# # The lake in a notebook
#
# Cells as in any notebook (`# %%`). Run it on the data directory of a server, running or not, on this machine or on a
# Spark Connect server:
#
#     python examples/lake_notebook.py unisono-data lake
#     python examples/lake_notebook.py unisono-data lake sc://127.0.0.1:15002

# %%
# ruff: noqa: T201
import sys

from pyspark.sql import functions as f

from unisono import pipeline

store = f"sqlite:{sys.argv[1] if len(sys.argv) > 1 else 'unisono-data'}"
lake = sys.argv[2] if len(sys.argv) > 2 else "lake"
master = sys.argv[3] if len(sys.argv) > 3 else None

# `session` has our settings; in a notebook that brings its own `spark`, leave it out.
spark = pipeline.session(master)
pipeline.register(spark)

# %% [markdown]
# ## Copy the log, and fold it
# Both continue where they ended before, and can be run again after anything.

# %%
done = pipeline.export(spark, store, lake)
print(f"exported {done.events} events, the lake has all up to {done.upto}")
folded = pipeline.make_snapshots(spark, lake, store=store)
print(f"folded {folded.events} events into {folded.partitions} snapshots")

# %% [markdown]
# ## Look at it
# Each of these is a DataFrame.

# %%
log = pipeline.read_log(spark, lake)
log.groupBy("type").count().orderBy(f.desc("count"), "type").show()
states = pipeline.states_at(spark, lake, done.upto // 2, store=store)
now = pipeline.snapshots(spark, lake, store=store)
grown = now.join(states.select("partition", f.col("events").alias("before")), "partition")
grown.orderBy(f.desc(f.col("events") - f.col("before")), "partition").select(
    "partition", "before", "events"
).show(5)

# %% [markdown]
# ## What changed in one partition
# One partition needs no Spark.

# %%
name = now.orderBy(f.desc("events"), "partition").first()["partition"]
changes = pipeline.diff(lake, name, done.upto // 2, store=store)
print(f"{name}: {len(changes)} changes in the second half")
for change in changes[:3]:
    print(" ", change.line())

# %% [markdown]
# ## Is it sound?

# %%
report = pipeline.audit(spark, lake, store)
print(report.verdict())
