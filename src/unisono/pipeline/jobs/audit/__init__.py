"""Is the history sound? What `unisono lake audit` looks at, one module for each question.

    findings   what can be wrong, and how findings are counted and kept
    scope      what an audit is about, and what its tasks bring back
    reading    a file as far as it can be read
    events     one event by itself: partitions, canonical form, hash, kind, shape
    files      one file of a table: sorted, true statistics, right bucket
    chaining   all files of `log` as one history
    ids        no id twice in the whole history
    prints     fingerprints of rows, summed over blocks of ids, by which large copies are compared
    stored     the server's log as far as it can be read
    copies     by_partition beside log, the server's log beside the lake: which events differ
    pruned     what the log remembers of events that have left it
    erasures   tombstones and the record of erasures
    states     snapshots beside a replay; `replaying` says which, and by which models
    trees      the trees in a state
    report     what came out, as text and JSON; `page` as a page

`unisono.pipeline.jobs.audit.job` puts them together. Nothing here stops at what it finds.
"""
