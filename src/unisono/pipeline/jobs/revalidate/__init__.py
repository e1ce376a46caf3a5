"""Judges the history again under another model.

job             puts the parts together
model_track     one model's judgement and replay of one partition
tasks           a subset of the partitions under both models, on an executor
result          the counts, and how counts of subsets are merged
compare_states  where two states differ
rows            the rows behind the counts, as Parquet
page            the result as text and HTML
"""
