"""The shared log as source and target of a copy (see `store/copy.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

import psycopg

from unisono.store.copy import HeadRow
from unisono.store.copy_pruned import READ_ROWS, Place, Remembered
from unisono.store.port import RememberedId, Revocation, Snapshot
from unisono.store.postgres import identity as identities
from unisono.store.postgres.connect import SQL, connect, raise_unusable
from unisono.store.postgres.log import PostgresLog, PostgresReader
from unisono.store.postgres.rows import Blobs, Integers, Texts, escape, unescape
from unisono.store.postgres.timeouts import WHOLE_LOG, Timeouts
from unisono.vocabulary import LogIdentity

NODE: Final = "copy"
"""The node name of a running copy."""


class PostgresSource:
    """A shared log, read while its nodes run."""

    def __init__(self, dsn: str) -> None:
        self._reader = PostgresReader.open(dsn)
        self.scan = self._reader.scan
        self.identity = self._reader.identity

    def extent(self) -> HeadRow:
        return HeadRow(*self._reader.ask("copy_extent"))

    def count_snapshots(self) -> int:
        return int(self._reader.ask("count_snapshots")[0])

    def snapshots(self) -> Iterator[Snapshot]:
        return self._reader.snapshots()

    def revocations(self) -> list[Revocation]:
        rows = self._reader.list("revocations")
        return [Revocation(kind, unescape(name), until) for kind, name, until in rows]

    def pruned(self, upto: int) -> Iterator[Remembered]:
        return _pruned(self._reader, upto)

    def pruned_partitions(self) -> Iterator[Place]:
        return _pruned_partitions(self._reader)

    def archive(self) -> str | None:
        return self._reader.extent().archive

    def close(self) -> None:
        self._reader.close()


class PostgresTarget:
    """A shared log made by `unisono db init`; no node may write to it during the copy."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.log = PostgresLog.open(dsn, NODE)

    def extent(self) -> HeadRow:
        return HeadRow(*self.log.ask("copy_extent"))

    def start_pruned(self, pruned_to: int, time: int) -> None:
        """With the owner's role: nodes may not set where the log begins."""
        self.log.close()
        self._as_owner("start_pruned", {"pruned_to": pruned_to, "time": time})
        self.log = PostgresLog.open(self._dsn, NODE)

    def pruned(self, upto: int) -> Iterator[Remembered]:
        return _pruned(self.log, upto)

    def pruned_partitions(self) -> Iterator[Place]:
        return _pruned_partitions(self.log)

    def archive(self) -> str | None:
        return self.log.extent().archive

    def put_pruned(self, rows: Sequence[Remembered]) -> None:
        self._as_owner(
            "insert_pruned_ids",
            {
                "ids": Texts(escape(id) for id, _ in rows),
                "committed_ids": Integers([known.committed_id for _, known in rows]),
                "client_ids": Texts(escape(known.client_id) for _, known in rows),
                "times": Integers([known.status_updated_at for _, known in rows]),
                "hashes": Blobs([known.hash for _, known in rows]),
            },
        )

    def put_pruned_partitions(self, rows: Sequence[Place]) -> None:
        names, last = Texts(escape(name) for name, _ in rows), Integers([at for _, at in rows])
        self._as_owner("insert_pruned_partitions", {"partitions": names, "committed_ids": last})

    def set_archive(self, location: str) -> None:
        self._as_owner("set_archive", {"location": location})

    def count_event_partitions(self, since: int) -> int:
        with closing(PostgresReader.open(self._dsn, timeouts=WHOLE_LOG)) as reader:
            return int(reader.ask("count_event_partitions", {"since": since})[0])

    def set_identity(self, identity: LogIdentity) -> None:
        """With the owner's role: nodes may not change a log's identity."""
        identities.set_identity(self._dsn, identity)

    def close(self) -> None:
        self.log.close()

    def _as_owner(self, query: str, parameters: Mapping[str, Any]) -> None:
        try:
            with closing(connect(self._dsn, Timeouts(), owner=True)) as connection:
                connection.execute(SQL[query], parameters)
        except psycopg.Error as error:
            raise_unusable(self._dsn, error)


def _pruned(reader: PostgresReader, upto: int) -> Iterator[Remembered]:
    after = ""
    while rows := reader.list("pruned_ids", {"after": after, "upto": upto, "limit": READ_ROWS}):
        for after, committed_id, client_id, time, hash in rows:
            yield unescape(after), RememberedId(committed_id, hash, unescape(client_id), time)


def _pruned_partitions(reader: PostgresReader) -> Iterator[Place]:
    after = ""
    while rows := reader.list("pruned_partitions", {"after": after, "limit": READ_ROWS}):
        for after, committed_id in rows:
            yield unescape(after), committed_id
