"""A process that writes until it is stopped: `python -m tests.store.appending kill|prune|full DIRECTORY`.

prune lets events leave the log, a few at a time, and writes where it begins then to stdout after each step
kill  commits groups for ever, and writes the head to stdout after each
full  commits, then finds the disk full (RLIMIT_FSIZE), and writes what the log said to stdout, as JSON
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path

from tests.store.records import append, make_record
from unisono.store.port import StorageError
from unisono.store.sqlite import recent_partitions
from unisono.store.sqlite.log import SqliteLog


def append_for_ever(log: SqliteLog) -> None:
    while True:
        last = append(log, [["p", "q"], ["p"], ["q", "r"]])[-1]
        os.write(1, f"{last.committed_id}\n".encode())
        log.maintain()


def prune_for_ever(log: SqliteLog) -> None:
    while log.prune_batch(10**9, limit=5):
        os.write(1, f"{log.extent().pruned_to}\n".encode())
        log.maintain()
    signal.pause()


def append_until_full(log: SqliteLog, directory: Path) -> None:
    acknowledged = append(log, [["p"]] * 10)[-1].committed_id
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    size = (directory / "log.db-wal").stat().st_size + 3 * 4096
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    said = []
    head = log.begin([]).head
    try:
        log.commit([make_record(head + 1 + n, event=b'"%b"' % (b"x" * 2000)) for n in range(20)])
    except StorageError as error:
        said.append(str(error))
    # There is room again; the log stays shut all the same.
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for call in (log.head, log.maintain, log.last_status_updated_at, lambda: log.begin([])):
        try:
            call()
        except StorageError as error:
            said.append(str(error))
    log.close()
    os.write(1, json.dumps({"acknowledged": acknowledged, "said": said}).encode())


if __name__ == "__main__":
    setattr(recent_partitions, "WAITING_MAX", 16)  # noqa: B010  # so that some rows are in the table, some are not
    place = Path(sys.argv[2])
    if sys.argv[1] == "kill":
        append_for_ever(SqliteLog.open(place))
    elif sys.argv[1] == "prune":
        prune_for_ever(SqliteLog.open(place))
    else:
        append_until_full(SqliteLog.open(place), place)
