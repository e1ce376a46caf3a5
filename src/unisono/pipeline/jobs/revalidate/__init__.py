"""Judging history again under another model, one module for each part of it.

    tracks     one model's judgement and replay of one partition
    judging    a share of the partitions under both models, on an executor
    outcomes   what is counted, and how counts of several shares are put together
    comparing  where two states differ
    rows       the rows behind the counts, as Parquet
    page       what came out, as a page

`unisono.pipeline.jobs.revalidate.job` puts them together.
"""
