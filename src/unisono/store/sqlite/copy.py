"""The embedded log as source and target of a copy (see `copying`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import apsw
import msgspec

from unisono.store import copy_pruned as pruning
from unisono.store.copy import HeadRow
from unisono.store.copy_pruned import Place, Remembered
from unisono.store.port import Snapshot
from unisono.store.sqlite import files
from unisono.store.sqlite.log import SqliteLog, SqliteReader
from unisono.store.sqlite.reader import unusable
from unisono.vocabulary import LogIdentity

_EXTENT: Final = "SELECT committed_id, pruned_to, status_updated_at FROM head"
_COUNT_SNAPSHOTS: Final = "SELECT count(*) FROM snapshots"
_SNAPSHOTS: Final = (
    "SELECT partitions.name, snapshots.committed_id, snapshots.model_version, snapshots.state, snapshots.created_at, "
    "snapshots.model_digest FROM snapshots CROSS JOIN partitions ON partitions.number = snapshots.partition"
)
_COUNT_PLACES: Final = "SELECT count(*) FROM event_partitions WHERE committed_id > ?"
_START_PRUNED: Final = "UPDATE head SET committed_id = ?1, pruned_to = ?1, status_updated_at = ?2"


class SqliteSource:
    """An embedded log, read beside its server if one runs."""

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
        return HeadRow(*_integers(self._connection, _EXTENT))

    def count_snapshots(self) -> int:
        return _integers(self._connection, _COUNT_SNAPSHOTS)[0]

    def snapshots(self) -> Iterator[Snapshot]:
        for row in self._connection.execute(_SNAPSHOTS):
            yield Snapshot(*row)

    def pruned(self, upto: int) -> Iterator[Remembered]:
        return pruning.read_pruned(self._connection, upto)

    def pruned_partitions(self) -> Iterator[Place]:
        return pruning.read_partitions(self._connection)

    def archive(self) -> str | None:
        return self._reader.extent().archive

    def close(self) -> None:
        self._connection.close()
        self._reader.close()


class SqliteTarget:
    """An embedded log, made when missing; nobody else may have it open."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.log = SqliteLog.open(directory)

    def extent(self) -> HeadRow:
        return HeadRow(*self._ask(_EXTENT))

    def start_pruned(self, pruned_to: int, time: int) -> None:
        self._write(lambda connection: connection.execute(_START_PRUNED, (pruned_to, time)))

    def pruned(self, upto: int) -> Iterator[Remembered]:
        with closing(files.connect_reader(self._directory)) as connection:
            yield from pruning.read_pruned(connection, upto)

    def pruned_partitions(self) -> Iterator[Place]:
        with closing(files.connect_reader(self._directory)) as connection:
            yield from pruning.read_partitions(connection)

    def archive(self) -> str | None:
        return self.log.extent().archive

    def put_pruned(self, rows: Sequence[Remembered]) -> None:
        self._write(lambda connection: pruning.write_pruned(connection, rows))

    def put_pruned_partitions(self, rows: Sequence[Place]) -> None:
        self._write(lambda connection: pruning.write_partitions(connection, rows))

    def set_archive(self, location: str) -> None:
        self.log.set_archive(location)

    def count_places(self, since: int) -> int:
        return self._ask(_COUNT_PLACES, since)[0]

    def set_identity(self, identity: LogIdentity) -> None:
        self.log.set_identity(identity)

    def close(self) -> None:
        self.log.close()

    def _write(self, work: Callable[[apsw.Connection], object]) -> None:
        """What no log in use would allow: beside it, and not by it."""
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
    return msgspec.convert(connection.execute(query, parameters).fetchall()[0], tuple[int, ...])
