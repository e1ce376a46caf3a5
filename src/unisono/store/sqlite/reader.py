"""Reading the embedded log: scans, snapshots and, from `pages.py`, pages, over an own connection or the writer's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

import apsw
import msgspec

from unisono.store.browse import NodeSeen, PartitionSize
from unisono.store.cluster import ModelBundle
from unisono.store.port import (
    SCAN_BYTES_MAX,
    LogExtent,
    Record,
    Snapshot,
    StorageError,
    StoreUnusable,
)
from unisono.store.sqlite import files
from unisono.store.sqlite.pages import READ_ERRORS, SqlitePages, record_of
from unisono.store.statements import load_queries
from unisono.vocabulary import LogIdentity

NAMES_READ_MAX: Final = 5_000
"""Names of partitions fetched at a time."""

WATERMARKS_READ_MAX: Final = 5_000
"""Watermarks read at once: about ten milliseconds."""

_SQL = load_queries("sqlite")
_decode_files = msgspec.msgpack.Decoder(dict[str, bytes]).decode


class SqliteReader(SqlitePages):
    """Pages, scans and snapshots of a log, each read in one snapshot that ends before it returns."""

    def __init__(self, connection: apsw.Connection) -> None:
        super().__init__(connection)
        self._identity: LogIdentity | None = None

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Open the log in `directory` for reading; raises StoreUnusable."""
        try:
            connection = files.connect_reader(directory)
            try:
                files.refuse_other_versions(connection, directory)
                connection.pragma("mmap_size", files.READER_MMAP_BYTES)
            except BaseException:
                connection.close()
                raise
        except (apsw.Error, OSError) as error:
            raise unusable(directory, error) from error
        return cls(connection)

    def reopen(self) -> None:
        """An embedded log fails permanently; it is never just unavailable."""
        raise StorageError("an embedded log cannot be reopened after a failure: restart the server")

    def head(self) -> int:
        self._check()
        try:
            return int(self._connection.execute(_SQL["head"]).get)
        except READ_ERRORS as error:
            self._fail("reading the head", error)

    def identity(self) -> LogIdentity:
        """Read once: it changes only while nobody has the log open."""
        self._check()
        if self._identity is None:
            try:
                ((log_id, log_epoch),) = self._rows("identity")
            except (*READ_ERRORS, ValueError) as error:  # ValueError: the head row is missing
                self._fail("reading the log's identity", error)
            self._identity = LogIdentity(log_id, log_epoch)
        return self._identity

    def extent(self) -> LogExtent:
        self._check()
        try:
            ((pruned_to, head, archive),) = self._rows("extent")
        except (*READ_ERRORS, ValueError) as error:  # ValueError: the head row is missing
            self._fail("reading the extent", error)
        return LogExtent(pruned_to, head, archive)

    def scan(self, since: int, upto: int, *, limit: int, bytes_max: int = SCAN_BYTES_MAX) -> Sequence[Record]:
        self._check()
        if since >= upto or limit < 1:
            return []
        records: list[Record] = []
        try:
            rows = self._connection.execute(_SQL["scan"], (since, upto, limit))
            for row in rows:
                records.append(record_of(row))
                bytes_max -= len(records[-1].event)
                if bytes_max <= 0:
                    break
            rows.close(True)
            self._raise_if_pruned(since)
        except READ_ERRORS as error:
            self._fail("scanning the log", error)
        return records

    def last_status_updated_at(self) -> int:
        self._check()
        try:
            return int(self._connection.execute(_SQL["last_status_updated_at"]).get)
        except READ_ERRORS as error:
            self._fail("reading the head", error)

    def last_before(self, time_ms: int, now_ms: int, upto: int) -> int:
        self._check()
        try:
            return int(self._connection.execute(_SQL["last_before"], (time_ms, now_ms, upto)).get)
        except READ_ERRORS as error:
            self._fail("reading the times", error)

    def snapshot(self, partition: str, model_version: int, model_digest: str = "") -> Snapshot | None:
        self._check()
        try:
            row = self._connection.execute(
                _SQL["snapshot"], (partition, model_version, model_digest)
            ).fetchone()
        except READ_ERRORS as error:
            self._fail("reading a snapshot", error)
        if row is None:
            return None
        committed_id, state, created_at = row
        return Snapshot(partition, committed_id, model_version, state, created_at, model_digest)

    def snapshot_sizes(
        self, partitions: Sequence[str], model_version: int, model_digest: str = ""
    ) -> dict[str, tuple[int, int]]:
        self._check()
        asked = msgspec.json.encode(partitions).decode()
        try:
            rows = self._connection.execute(_SQL["snapshot_sizes"], (asked, model_version, model_digest))
            return {name: (committed_id, size) for name, committed_id, size in rows}
        except READ_ERRORS as error:
            self._fail("reading the snapshots", error)

    def snapshots_of(
        self, partitions: Sequence[str], model_version: int, model_digest: str = ""
    ) -> list[Snapshot]:
        self._check()
        asked = msgspec.json.encode(partitions).decode()
        try:
            rows = self._connection.execute(_SQL["snapshots_of"], (asked, model_version, model_digest))
            return [
                Snapshot(name, at, model_version, state, made, model_digest) for name, at, state, made in rows
            ]
        except READ_ERRORS as error:
            self._fail("reading the snapshots", error)

    def watermarks(self, model_version: int, model_digest: str = "") -> Iterator[tuple[str, int]]:
        """Every partition with a snapshot of that model, and its committed_id, in short reads."""
        after = -(2**63)
        while True:
            self._check()
            try:
                rows = list(self._rows("watermarks", after, model_version, model_digest, WATERMARKS_READ_MAX))
            except READ_ERRORS as error:
                self._fail("reading the watermarks", error)
            yield from ((name, committed_id) for _, name, committed_id in rows)
            if len(rows) < WATERMARKS_READ_MAX:
                return
            after = rows[-1][0]

    def erasures(self) -> int:
        """How many times something was erased in this log."""
        self._check()
        try:
            return int(self._connection.execute(_SQL["erasures"]).get)
        except READ_ERRORS as error:
            self._fail("reading the erasures", error)

    def partition_names(self) -> Iterator[str]:
        """Every partition that has, or had, an event in this log, in short reads."""
        after = -(2**63)
        while True:
            self._check()
            try:
                rows = list(self._rows("partition_names", after, NAMES_READ_MAX))
            except READ_ERRORS as error:
                self._fail("reading the partitions", error)
            yield from (name for _, name in rows)
            if len(rows) < NAMES_READ_MAX:
                return
            after = rows[-1][0]

    def names_from(self, prefix: str, after: str, limit: int) -> list[str]:
        """See BrowsableLog."""
        self._check()
        try:
            rows = list(self._rows("names_from", prefix, after, limit))
        except READ_ERRORS as error:
            self._fail("reading the partitions", error)
        return [name for (name,) in rows if name.startswith(prefix)]

    def partition_size(self, partition: str, limit: int) -> PartitionSize:
        """See BrowsableLog."""
        self._check()
        try:
            head = self._recent.read_new()
            number = self._look_up([partition]).get(partition)
            if number is None:
                return PartitionSize(0, 0, 0)
            recent = self._recent.newest_ids(number, head, limit)
            asked = (number, self._recent.indexed_to, limit - len(recent))
            ((events, first, last),) = self._rows("partition_size", *asked)
        except (*READ_ERRORS, ValueError) as error:
            self._fail("reading the size of a partition", error)
        newest = recent[0] if recent else last or 0
        return PartitionSize(events + len(recent), first or (recent[-1] if recent else 0), newest)

    def newest_ids(self, partition: str, upto: int, limit: int) -> list[int]:
        """See BrowsableLog."""
        self._check()
        try:
            self._recent.read_new()
            number = self._look_up([partition]).get(partition)
            if number is None:
                return []
            recent = self._recent.newest_ids(number, upto, limit)
            asked = (number, min(upto, self._recent.indexed_to), limit - len(recent))
            return recent + [committed_id for (committed_id,) in self._rows("newest_ids", *asked)]
        except READ_ERRORS as error:
            self._fail("reading the newest ids", error)

    def nodes(self, limit: int) -> Sequence[NodeSeen]:  # noqa: ARG002
        """See BrowsableLog."""
        return ()

    def model_in_force(self) -> ModelBundle | None:
        """The recorded model that the server judges by; None when it has no version, or none was recorded yet."""
        self._check()
        try:
            for version, digest, packed in self._rows("model_in_force"):
                return ModelBundle(version, digest, _decode_files(packed))
        except READ_ERRORS as error:
            self._fail("reading the model in force", error)
        return None

    def close(self) -> None:
        self._connection.close()

    def _rows(self, query: str, *parameters: int | str) -> Iterator[tuple[Any, ...]]:
        return self._connection.execute(_SQL[query], parameters)


def unusable(directory: Path, error: Exception) -> StoreUnusable:
    if isinstance(error, apsw.NotADBError):
        return StoreUnusable(f"{directory / files.LOG_FILE} is not a SQLite database")
    if isinstance(error, apsw.CorruptError):
        return StoreUnusable(f"{directory / files.LOG_FILE} is damaged ({error}): `unisono check` says where")
    return StoreUnusable(f"the log in {directory} cannot be opened: {error}")
