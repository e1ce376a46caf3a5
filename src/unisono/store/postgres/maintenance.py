"""Maintenance of the shared log, by its owner: nodes may add events, but neither change nor remove them.

Every change is one short transaction. Rows are deleted and remembered before the head row is updated, which is the
last statement, so groups wait for one commit only. A reader never sees a gap: rows and `pruned_to` change together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Final

import msgspec
import psycopg
from psycopg import Connection

from unisono.protocol.tombstones import is_tombstone
from unisono.store.maintenance import (
    NO_ARCHIVE,
    PRUNE_BYTES_MAX,
    EraseResult,
    MaintenanceRefused,
    Tombstone,
    missing_event,
    require_archive,
    require_tombstones,
)
from unisono.store.port import StorageError
from unisono.store.postgres import schema
from unisono.store.postgres.connect import SQL, connect, raise_unusable, storage_error
from unisono.store.postgres.rows import Blobs, Integers, Row, Texts, escape
from unisono.store.postgres.timeouts import Timeouts

PRUNE_EVENTS_MAX: Final = 1_000
"""Events removed by one transaction, which blocks groups only during its commit."""

READS_PRUNED: Final = 2
"""The migration since which nodes look for duplicate ids among pruned events too."""

FINISHED: Final = 3
"""The migration that locks out nodes without READS_PRUNED."""

_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode


class PostgresMaintenance:
    """Changes over the owner's connection. An error closes it; the next call opens another."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: Connection[Row] | None = None
        try:
            with closing(connect(dsn, Timeouts())) as connection:
                schema.refuse_other_versions(connection, dsn)
        except psycopg.Error as error:
            raise_unusable(dsn, error)

    def set_archive(self, location: str) -> None:
        require_archive(location)
        with _Work(self, "naming the archive") as work:
            work.run("set_archive", {"location": location})

    def prune_batch(self, upto: int, *, limit: int = PRUNE_EVENTS_MAX) -> int:
        """Remove some of the oldest events up to `upto`; how many, 0 when none is left."""
        with _Work(self, "pruning") as work:
            work.run("lock_maintenance")
            since, head, archive, finished = work.row("prune_state", {"number": FINISHED})
            if archive is None:
                raise MaintenanceRefused(NO_ARCHIVE)
            if not finished:
                raise MaintenanceRefused(
                    "nodes of an older version can still join this log, and would commit pruned ids again: run "
                    "`unisono db migrate --finish` once all nodes are upgraded"
                )
            _refuse_older_nodes(work)
            last = _last_to_delete(work, since, min(upto, head), limit)
            if last == since:
                return 0
            stretch = {"since": since, "upto": last}
            places = sorted(
                (escape(name), committed_id)
                for committed_id, names in work.rows("partitions_of_events", stretch)
                for name in _decode_names(names)
            )
            work.run("remember_pruned_ids", stretch)
            work.run(
                "prune_event_partitions",
                {"partitions": Texts(name for name, _ in places), "ids": Integers([at for _, at in places])},
            )
            work.run("prune_events", stretch)
            if work.run("advance_pruned_to", stretch) != 1:
                raise StorageError("another process pruned the log at the same time")
            return int(last - since)

    def erase(self, tombstones: Sequence[Tombstone], partitions: Sequence[str] = ()) -> EraseResult:
        """Replace events by tombstones, and drop the snapshots that may contain their text."""
        with _Work(self, "erasing") as work:
            work.run("lock_maintenance")
            work.run("lock_snapshots_exclusive")
            _, head, *_ = work.row("prune_state", {"number": FINISHED})
            require_tombstones(tombstones, head)
            concerned = dict.fromkeys(partitions)
            replacing = {tombstone.committed_id: tombstone.event for tombstone in tombstones}
            living: list[int] = []
            if replacing:
                for committed_id, names, event in work.rows(
                    "events_to_erase", {"ids": Integers(list(replacing))}
                ):
                    concerned.update(dict.fromkeys(_decode_names(names)))
                    if not is_tombstone(event):
                        living.append(committed_id)
            if living:
                texts = Blobs([replacing[committed_id] for committed_id in living])
                work.run("replace_events", {"ids": Integers(living), "events": texts})
            if concerned:
                work.run("drop_snapshots", {"partitions": Texts(escape(name) for name in concerned)})
            erasures, _ = work.row("count_erasure")
            return EraseResult(len(living), tuple(concerned), erasures)

    def reclaim(self) -> None:
        """VACUUM while nodes run; after an erasure, rewrite the tables.

        Rewriting locks a table for about a second per 100 MB.
        """
        try:
            with closing(connect(self._dsn, Timeouts(), owner=True)) as connection:
                ((erasures, unclean),) = connection.execute(SQL["read_unclean"]).fetchall()
                if unclean:
                    for query in ("drop_event_statistics", "drop_state_statistics", "rewrite_tables"):
                        connection.execute(SQL[query])
                    connection.execute(SQL["set_clean"], {"erasures": erasures})
                connection.execute(SQL["vacuum_tables"])
        except psycopg.Error as error:
            raise storage_error("reclaiming space", error) from error

    def erasures(self) -> int:
        with _Work(self, "reading the log") as work:
            return int(work.row("erasures")[0])

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def connection(self) -> Connection[Row]:
        if self._connection is None:
            self._connection = connect(self._dsn, Timeouts())
        return self._connection


class _Work:
    """One transaction, as a context; an error inside rolls it back."""

    def __init__(self, maintenance: PostgresMaintenance, doing: str) -> None:
        self._maintenance = maintenance
        self._doing = doing
        self._connection: Connection[Row] | None = None

    def __enter__(self) -> _Work:
        try:
            self._connection = self._maintenance.connection()
            self._connection.execute("BEGIN")
        except psycopg.Error as error:
            self._maintenance.close()
            raise storage_error(self._doing, error) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        assert self._connection is not None
        try:
            self._connection.execute("COMMIT" if kind is None else "ROLLBACK")
        except psycopg.Error as failure:
            self._maintenance.close()
            if kind is None:
                raise storage_error(self._doing, failure) from failure
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            raise MaintenanceRefused(
                f"{self._doing} needs the owner of the log: connect as the role that ran `unisono db init`"
            ) from error
        if isinstance(error, psycopg.Error):
            self._maintenance.close()
            raise storage_error(self._doing, error) from error

    def run(self, query: str, parameters: Mapping[str, Any] | None = None) -> int:
        return self._execute(query, parameters).rowcount

    def rows(self, query: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        return self._execute(query, parameters).fetchall()

    def row(self, query: str, parameters: Mapping[str, Any] | None = None) -> Row:
        (row,) = self.rows(query, parameters)
        return row

    def _execute(self, query: str, parameters: Mapping[str, Any] | None) -> psycopg.Cursor[Row]:
        assert self._connection is not None
        return self._connection.execute(SQL[query], parameters, binary=True)


def _refuse_older_nodes(work: _Work) -> None:
    parameters = {"number": READS_PRUNED, "dead_after_s": schema.ALIVE_S}
    names = [name for (name,) in work.rows("older_nodes", parameters)]
    if names:
        raise MaintenanceRefused(
            f"running nodes of an older version would commit pruned ids again: {', '.join(names)}. "
            "Upgrade or stop them"
        )


def _last_to_delete(work: _Work, since: int, upto: int, limit: int) -> int:
    last, size = since, 0
    for committed_id, length in work.rows("oldest_events", {"since": since, "upto": upto, "limit": limit}):
        size += length
        if last > since and size > PRUNE_BYTES_MAX * 4:
            return last
        if committed_id != last + 1:
            break
        last = committed_id
    if last == since < upto:
        raise MaintenanceRefused(missing_event(since + 1))
    return last
