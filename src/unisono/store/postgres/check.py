"""The shared log, read for checking (see `store/check_log.py`) while nodes run, in read-only transactions.

Statements are short: a long one would keep PostgreSQL from vacuuming, and slow down every group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final, NoReturn

import psycopg

from unisono.store.check_log import BATCH_BYTES_MAX, BATCH_ROWS, LogEnds, PartitionIndexRow, Unreadable
from unisono.store.check_rows import Row, name_complaint
from unisono.store.port import LogFinding, StoreUnusable
from unisono.store.postgres import schema
from unisono.store.postgres.connect import describe_dsn, is_lost, one_line, raise_unusable
from unisono.store.postgres.open_pipeline import open_pipeline
from unisono.store.postgres.pipeline_connection import Parameters, PipelineConnection
from unisono.store.postgres.rows import Integers, Texts, escape, unescape
from unisono.store.postgres.timeouts import WHOLE_LOG, Timeouts
from unisono.store.statements import load_schema

KEYS: Final = frozenset(
    {"events_pkey", "event_partitions_pkey", "pruned_pkey", "pruned_partitions_pkey", "snapshots_pkey"}
)
"""Indexes that rows are read along: without one of them, each batch would read the whole table."""


FIRST: Final = ("", -(2**63))
"""Less than every key of text and number."""


def open_database(dsn: str) -> PostgresOpened:
    """StoreUnusable when there is no log this program can read, or no connection."""
    return PostgresOpened(dsn, _open_pipeline(dsn, Timeouts()))


class PostgresOpened:
    """One connection, and a second one for the only long statement."""

    def __init__(self, dsn: str, pipeline: PipelineConnection) -> None:
        self._dsn = dsn
        self._pipeline = pipeline
        self.finds_by_id = True

    def structure_findings(self) -> Iterator[LogFinding]:
        """Compare migrations, tables, columns, indexes and constraints; additions of an operator are ignored."""
        for migration, (_, name) in zip(schema.known_migrations(), self._rows("versions"), strict=False):
            if name != migration.name:
                yield LogFinding("schema", f"{name} is said to be applied in the place of {migration.name}")
        present = {(kind, name): form for kind, _, name, form in self._rows("check_schema")}
        wrong = set()
        for kind, table, name, form in load_schema("postgres"):
            found = present.get((kind, name))
            if found == form or (name != table and ("table", table) not in present):
                continue
            wrong.add(name)
            what = "missing" if found is None else f"{found}, and should be {form}"
            yield LogFinding("schema", f"the {kind} {name} is {what}")
        self.finds_by_id = "events_by_id" not in wrong
        if keys := sorted(wrong & KEYS):
            raise Unreadable(f"the rows are found by {', '.join(keys)}: mend the schema, and check again")

    def head(self) -> LogEnds | None:
        row = self._row("check_head")
        return None if row is None else LogEnds(*row)

    def extent(self) -> tuple[int | None, int | None]:
        ((first, last),) = self._rows("check_extent")
        return first, last

    def pruned_to(self) -> int:
        row = self._row("pruned_to")
        return 0 if row is None else int(row[0])

    def maintenance_row(self) -> tuple[str | None, bool] | None:
        row = self._row("check_maintenance")
        return None if row is None else (row[0], row[1])

    def estimated_index_rows(self) -> int:
        row = self._row("check_index_size")
        return 0 if row is None else int(row[0])

    def events(self, since: int, upto: int) -> Sequence[Row]:
        bounds = {"since": since, "upto": upto, "limit": BATCH_ROWS, "bytes_max": BATCH_BYTES_MAX}
        return [(row[0], unescape(row[1]), *row[2:]) for row in self._rows("check_events", bounds)]

    def events_of(self, ids: Sequence[str]) -> Sequence[tuple[str, int]]:
        rows = self._rows("check_events_of", {"ids": Texts(map(escape, ids))})
        return [(unescape(id), committed_id) for id, committed_id in rows]

    def id_findings(self) -> Iterator[LogFinding]:
        """None: the database keeps its index, and amcheck has compared it."""
        return iter(())

    def pruned_among(self, ids: Sequence[str]) -> Sequence[str]:
        return [unescape(id) for (id,) in self._rows("check_remembered_of", {"ids": Texts(map(escape, ids))})]

    def missing_index_rows(self, places: Sequence[tuple[str, int]]) -> Sequence[tuple[str, int]]:
        names, committed_ids = Texts(escape(name) for name, _ in places), Integers([at for _, at in places])
        rows = self._rows("check_missing_partitions", {"partitions": names, "committed_ids": committed_ids})
        return [(unescape(name), committed_id) for name, committed_id in rows]

    def duplicates(self) -> Iterator[tuple[str, int, int]]:
        with closing(_open_pipeline(self._dsn, WHOLE_LOG)) as pipeline:
            rows = _ask(self._dsn, pipeline, "check_duplicates")
        for id, first, count in rows:
            yield unescape(id), first, count

    def pruned_ids(self) -> Iterator[Sequence[tuple[int, int]]]:
        after = ""
        while rows := self._rows("check_pruned", {"after": after, "limit": BATCH_ROWS}):
            yield [(committed_id, hash_bytes) for _, committed_id, hash_bytes in rows]
            after = rows[-1][0]

    def name_findings(self) -> Iterator[LogFinding]:
        after = ""
        while rows := self._rows("pruned_partitions", {"after": after, "limit": BATCH_ROWS}):
            pruned_to = self.pruned_to()
            for stored, last in rows:
                if complaint := _complaint(stored):
                    yield LogFinding("pruned", complaint, last)
                if last > pruned_to:
                    what = f"events of {unescape(stored)!r} are said to have left up to it"
                    yield LogFinding("pruned", what, last)
            after = rows[-1][0]

    def index_rows(self) -> Iterator[Sequence[PartitionIndexRow]]:
        at: Row = FIRST
        while rows := self._rows(
            "check_index", {"partition": at[0], "committed_id": at[1], "limit": BATCH_ROWS}
        ):
            yield [
                PartitionIndexRow(
                    repr(stored), None if _complaint(stored) else unescape(stored), committed_id, partitions
                )
                for stored, committed_id, partitions in rows
            ]
            at = rows[-1][:2]

    def snapshot_findings(self) -> Iterator[LogFinding]:
        at: Row = FIRST
        while rows := self._rows(
            "check_snapshots", {"partition": at[0], "version": at[1], "limit": BATCH_ROWS}
        ):
            for stored, _, committed_id, head in rows:
                if complaint := _complaint(stored):
                    yield LogFinding("snapshot", complaint, committed_id)
                elif committed_id < 0 or (head is not None and committed_id > head):
                    yield LogFinding("snapshot", f"of {unescape(stored)!r} goes past the head", committed_id)
            at = rows[-1][:2]

    def close(self) -> None:
        self._pipeline.close()

    def _row(self, query: str) -> Row | None:
        return next(iter(self._rows(query)), None)

    def _rows(self, query: str, parameters: Parameters = None) -> Sequence[Row]:
        return _ask(self._dsn, self._pipeline, query, parameters)


def _complaint(stored: str) -> str | None:
    """The defect of a partition's stored name, if any."""
    name = unescape(stored)
    return f"{stored!r} is spelt as no node does" if escape(name) != stored else name_complaint(name)


def _open_pipeline(dsn: str, timeouts: Timeouts) -> PipelineConnection:
    """A read-only connection."""
    pipeline = open_pipeline(dsn, timeouts)
    try:
        pipeline.control("SET default_transaction_read_only = on")
        pipeline.sync()
    except psycopg.Error as error:
        pipeline.close()
        _raise(dsn, error)
    return pipeline


def _ask(dsn: str, pipeline: PipelineConnection, query: str, parameters: Parameters = None) -> Sequence[Row]:
    try:
        return pipeline.ask(query, parameters)
    except psycopg.Error as error:
        _raise(dsn, error)


def _raise(dsn: str, error: psycopg.Error) -> NoReturn:
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        raise_unusable(dsn, error)
    if is_lost(error):
        raise StoreUnusable(
            f"{describe_dsn(dsn)} was lost while it was checked: {one_line(error)}"
        ) from error
    raise Unreadable(one_line(error)) from error
