"""Is the history sound? What `unisono lake audit` checks, one module per question.

job                puts the checks together; no finding stops an audit
findings           the kinds of findings; counts them and keeps the first of each kind
tasks              the scope of an audit, and what its tasks return
read_file          reads a data file as far as possible
event_checks       one event: partitions, canonical form, hash, kind, shape
file_checks        one file: order, statistics, bucket
id_continuity      all files of `log` as one history
duplicate_ids      no event id twice in the whole history
read_log           reads the server's log as far as possible
compare_copies     by_partition against log, the server's log against the lake
pruned_ids         the ids that the log keeps of pruned events
tombstones         tombstones against the record of erasures
snapshot_replay    snapshots against a replay; replay_tasks plans it
tree_invariants    the trees in a state
result             the report as text and JSON; page as HTML
"""
