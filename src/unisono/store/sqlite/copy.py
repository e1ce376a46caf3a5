"""The embedded log as source and target of a copy (see `store/copy.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import apsw
import msgspec

from unisono.store.copy import HeadRow
from unisono.store.copy_pruned import READ_ROWS, Place, Remembered
from unisono.store.port import RememberedId, Revocation, Snapshot
from unisono.store.sqlite import files
from unisono.store.sqlite.event_ids import id_keys
from unisono.store.sqlite.log import SqliteLog, SqliteReader
from unisono.store.sqlite.reader import unusable
from unisono.store.statements import load_queries
from unisono.vocabulary import LogIdentity

_SQL = load_queries("sqlite")


class SqliteSource:
    """An embedded log, read while its server may run."""

    def __init__(self, directory: Path) -> None:
        self._reader = SqliteReader.open(directory)
        self.scan = self._reader.scan
        self.identity = self._reader.identity
        try:
            self._connection = files.connect_reader(directory)
        except apsw.Error as error:
            self._reader.close()
            raise unusable(directory, error) from error

    def extent(self) -> HeadRow:
        return HeadRow(*_integers(self._connection, "copy_extent"))

    def count_snapshots(self) -> int:
        return _integers(self._connection, "count_snapshots")[0]

    def snapshots(self) -> Iterator[Snapshot]:
        for row in self._connection.execute(_SQL["all_snapshots"]):
            yield Snapshot(*row)

    def revocations(self) -> list[Revocation]:
        return [Revocation(*row) for row in self._connection.execute(_SQL["revocations"])]

    def pruned(self, upto: int) -> Iterator[Remembered]:
        return _read_pruned(self._connection, upto)

    def pruned_partitions(self) -> Iterator[Place]:
        return _read_pruned_partitions(self._connection)

    def archive(self) -> str | None:
        return self._reader.extent().archive

    def close(self) -> None:
        self._connection.close()
        self._reader.close()


class SqliteTarget:
    """An embedded log, created if missing; nobody else may have it open."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.log = SqliteLog.open(directory)

    def extent(self) -> HeadRow:
        return HeadRow(*self._ask("copy_extent"))

    def start_pruned(self, pruned_to: int, time: int) -> None:
        self._write(lambda connection: connection.execute(_SQL["start_pruned"], (pruned_to, time)))

    def pruned(self, upto: int) -> Iterator[Remembered]:
        with closing(files.connect_reader(self._directory)) as connection:
            yield from _read_pruned(connection, upto)

    def pruned_partitions(self) -> Iterator[Place]:
        with closing(files.connect_reader(self._directory)) as connection:
            yield from _read_pruned_partitions(connection)

    def archive(self) -> str | None:
        return self.log.extent().archive

    def put_pruned(self, rows: Sequence[Remembered]) -> None:
        self._write(lambda connection: _write_pruned(connection, rows))

    def put_pruned_partitions(self, rows: Sequence[Place]) -> None:
        self._write(lambda connection: _write_pruned_partitions(connection, rows))

    def set_archive(self, location: str) -> None:
        self.log.set_archive(location)

    def count_event_partitions(self, since: int) -> int:
        return self._ask("count_event_partitions", since)[0]

    def set_identity(self, identity: LogIdentity) -> None:
        self.log.set_identity(identity)

    def close(self) -> None:
        self.log.close()

    def _write(self, work: Callable[[apsw.Connection], object]) -> None:
        """Run a change that `SqliteLog` does not offer, on a connection of its own, with the log closed."""
        self.log.close()
        lock = files.DirectoryLock(self._directory)
        try:
            with closing(files.connect_writer(self._directory)) as connection:
                work(connection)
        finally:
            lock.release()
        self.log = SqliteLog.open(self._directory)

    def _ask(self, query: str, *parameters: int) -> tuple[int, ...]:
        with closing(files.connect_reader(self._directory)) as connection:
            return _integers(connection, query, *parameters)


def _integers(connection: apsw.Connection, query: str, *parameters: int) -> tuple[int, ...]:
    return msgspec.convert(connection.execute(_SQL[query], parameters).fetchall()[0], tuple[int, ...])


def _read_pruned(connection: apsw.Connection, upto: int) -> Iterator[Remembered]:
    after = 0
    while rows := connection.execute(_SQL["pruned_ids"], (after, upto, READ_ROWS)).fetchall():
        for id, committed_id, client_id, time, hash in msgspec.convert(
            rows, list[tuple[str, int, str, int, bytes]]
        ):
            yield id, RememberedId(committed_id, hash, client_id, time)
            after = committed_id


def _read_pruned_partitions(connection: apsw.Connection) -> Iterator[Place]:
    after = -(2**63)
    while rows := connection.execute(_SQL["pruned_partitions"], (after, READ_ROWS)).fetchall():
        found = msgspec.convert(rows, list[tuple[int, str, int]])
        yield from ((name, pruned_to) for _, name, pruned_to in found if pruned_to)
        after = found[-1][0]


def _write_pruned(connection: apsw.Connection, rows: Sequence[Remembered]) -> None:
    with connection:
        connection.executemany(
            _SQL["insert_pruned_id"],
            [(id, k.committed_id, k.client_id, k.status_updated_at, k.hash) for id, k in rows],
        )
        keys = id_keys([id for id, _ in rows])
        connection.executemany(
            _SQL["insert_event_id"],
            sorted((key, known.committed_id) for key, (_, known) in zip(keys, rows, strict=True)),
        )


def _write_pruned_partitions(connection: apsw.Connection, rows: Sequence[Place]) -> None:
    with connection:
        connection.executemany(_SQL["insert_pruned_partition"], rows)
