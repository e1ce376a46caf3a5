"""Keeping the shared log (see `keeping`), by its owner: nodes add events and can neither change nor remove one.

Every change is one short transaction. Deleting and remembering happens before the head row is touched; that is the
last statement, so groups wait for one commit and no more. A reader never meets a hole: rows leave and `pruned_to`
moves at the same moment.
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
    PRUNE_BYTES_MAX,
    EraseResult,
    MaintenanceRefused,
    Tombstone,
    require_archive,
    require_tombstones,
)
from unisono.store.port import StorageError
from unisono.store.postgres import schema
from unisono.store.postgres.connect import SQL, connect, raise_unusable, storage_error
from unisono.store.postgres.rows import Blobs, Integers, Row, Texts, escape
from unisono.store.postgres.timeouts import Timeouts

PRUNE_EVENTS_MAX: Final = 1_000
"""What leaves in one transaction: it holds up nobody but for its commit."""

READS_PRUNED: Final = 2
"""The migration with which nodes began to look for known ids among those that left."""

FINISHED: Final = 3
"""The migration that keeps nodes out which do not know the one before."""

_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode


class PostgresMaintenance:
    """The owner's connection. An error closes it; the next call makes it anew."""

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
        """Let go the oldest events up to `upto`, some of them; how many went, 0 when none is left to go."""
        with _Work(self, "pruning") as work:
            work.run("lock_maintenance")
            since, head, archive, finished = work.row("prune_state", {"number": FINISHED})
            if archive is None:
                raise MaintenanceRefused("no archive is named for what leaves the log")
            if not finished:
                raise MaintenanceRefused(
                    "nodes of an older version might still be started on this log, and would take what left it for "
                    "new: run `unisono db migrate --finish` once all nodes are upgraded"
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
                raise StorageError("the log was pruned by somebody else at the same time")
            return int(last - since)

    def erase(self, tombstones: Sequence[Tombstone], partitions: Sequence[str] = ()) -> EraseResult:
        """Put tombstones in the place of events, and drop the snapshots that could hold what they said."""
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
        """Let PostgreSQL use free space again, beside the nodes; after an erasure, write the tables anew.

        Writing a table anew takes it from everybody meanwhile, about a second for each 100 MB.
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
    """One transaction, as a context; what is refused in it changes nothing."""

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
                f"{self._doing} is for the owner of the log: connect as the role that ran `unisono db init`"
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
            f"running nodes of an older version would take what left the log for new: {', '.join(names)}. "
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
        raise MaintenanceRefused(f"event {since + 1} is missing from the log: `unisono check` tells more")
    return last
