"""A log as an older version made it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw

from tests.store.records import make_record
from unisono.protocol.canonical import canonical
from unisono.store.port import Record
from unisono.store.sqlite import files as sqlite_files
from unisono.store.statements import load_migrations


def make_version_1(directory: Path) -> list[Record]:
    """A log with data as the first version made it."""
    directory.mkdir(exist_ok=True)
    first = load_migrations("sqlite")[0]
    records = [make_record(n, ("p", "q") if n % 2 else ("p",)) for n in range(1, 301)]
    with closing(apsw.Connection(str(directory / "log.db"))) as connection:
        connection.pragma("journal_mode", "wal")
        connection.execute("BEGIN")
        connection.execute(first.script)
        connection.pragma("application_id", sqlite_files.APPLICATION_ID)
        connection.pragma("user_version", 1)
        connection.execute("INSERT INTO partitions VALUES (1, 'p'), (2, 'q')")
        for r in records:
            names = canonical(list(r.partitions)).decode()
            row = (r.committed_id, r.id, r.client_id, r.status_updated_at, r.hash, names, r.event)
            connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            connection.executemany(
                "INSERT INTO event_partitions VALUES (?, ?)",
                [(1 + "pq".index(name), r.committed_id) for name in r.partitions],
            )
        connection.execute("INSERT INTO snapshots VALUES (1, 1, 200, 5, x'0102')")
        connection.execute(
            "UPDATE head SET committed_id = 300, status_updated_at = ?", (records[-1].status_updated_at,)
        )
        connection.execute("COMMIT")
    return records
