"""The lake's Delta tables: making them, listing their files, committing to them exactly once.

Who may name what:

- the application transaction `unisono.export` holds the last committed_id exported to a table. A commit that
  adds history states the id it starts from; it is refused unless the table still stands there;
- the application transaction `unisono.rewrite` counts commits that replace files. delta-rs lets two writers
  remove the same file, so every rewrite raises this count and of two at once one is refused;
- the application transaction `unisono.snapshot` counts commits of snapshots, so that of two runs at once one is
  refused, and `unisono.snapshot.V` holds how far every partition has been folded under model version V;
- the application transaction `unisono.erase` counts records of erasures, so that each event is recorded once;
- the application transactions `unisono.rows` and `unisono.dropped` count the rows that were added and, by rewrites,
  taken away, so that missing ones are noticed. Each changes in commits that one of the above lets through singly;
- data files have unique names and are there before a commit names them. What a killed job leaves behind is in
  no table: nobody reads it, and a vacuum removes it. A job whose commit is refused removes what it wrote.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from unisono.lake.columns import ERASURE_SCHEMA, LOG_SCHEMA, PARTITION_SCHEMA, SNAPSHOT_SCHEMA
from unisono.lake.errors import CommitConflict, LakeUnusable, one_line
from unisono.lake.file_checks import is_own, require_all_rows, require_own
from unisono.lake.storage import BY_PARTITION, ERASURES, LOG, SNAPSHOTS, Storage
from unisono.lake.write import DataFile

EXPORT: Final = "unisono.export"
REWRITE: Final = "unisono.rewrite"
SNAPSHOT: Final = "unisono.snapshot"
ERASE: Final = "unisono.erase"
ROWS: Final = "unisono.rows"
DROPPED: Final = "unisono.dropped"

BUCKETS: Final = 16
"""Files a full export makes per run, and the share of a table that one partition's history is looked for in."""

BUCKETS_MAX: Final = 1_024

CHECKPOINT_COMMITS: Final = "32"
"""Commits between Delta checkpoints: what opening a table reads beside the last one."""

LAYOUT: Final = 1
"""Version of what this program expects of the tables beyond the Delta protocol."""

_SCHEMAS: Final[Mapping[str, Any]] = {
    LOG: LOG_SCHEMA,
    BY_PARTITION: PARTITION_SCHEMA.append(pa.field("bucket", pa.int32())),
    SNAPSHOTS: SNAPSHOT_SCHEMA.append(pa.field("model_version", pa.int64())).append(
        pa.field("bucket", pa.int32())
    ),
    ERASURES: ERASURE_SCHEMA,
}
_PARTITION_BY: Final[Mapping[str, list[str]]] = {
    LOG: [],
    BY_PARTITION: ["bucket"],
    SNAPSHOTS: ["model_version", "bucket"],
    ERASURES: [],
}
READER_VERSION: Final = 1
"""Of the Delta protocol: from 2 on files are not what they seem (column mapping, deletion vectors)."""

_TITLES: Final[Mapping[str, str]] = {
    LOG: "committed events, sorted by committed_id",
    BY_PARTITION: "one row per partition and event, bucketed by partition",
    SNAPSHOTS: "states of partitions, folded by a model up to a committed_id",
    ERASURES: "events whose content was erased, recorded before it was",
}


def _name(table: str) -> str:
    """What the table is called in its own metadata."""
    return f"unisono {table}"


class TableDescription(msgspec.Struct, frozen=True):
    """What a table's description holds beside its title."""

    layout: int
    buckets: int
    title: str = ""


class Table:
    """One Delta table at one version; `commit` is judged against that version and everything after it."""

    def __init__(self, storage: Storage, name: str, delta: DeltaTable) -> None:
        self.storage = storage
        self.name = name
        self.delta = delta

    @classmethod
    def open(cls, storage: Storage, name: str) -> Table | None:
        """The table as it is now; None when there is none."""
        try:
            delta = DeltaTable(storage.table(name), storage_options=storage.options or None)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError, ValueError) as error:
            raise LakeUnusable(f"{storage.table(name)} cannot be opened: {one_line(error)}") from error
        found = cls(storage, name, delta)
        found.description()  # refuses a table that is somebody else's
        found.require_reader_version()
        return found

    @classmethod
    def make(cls, storage: Storage, name: str, buckets: int) -> Table:
        """The table, made if it is not there; of two makers at once one finds the other's."""
        found = cls.open(storage, name)
        if found is not None:
            return found
        described = TableDescription(LAYOUT, buckets, _TITLES[name])
        try:
            DeltaTable.create(
                storage.table(name),
                _SCHEMAS[name],
                mode="ignore",
                partition_by=_PARTITION_BY[name],
                name=_name(name),
                description=msgspec.json.encode(described).decode(),
                configuration={"delta.checkpointInterval": CHECKPOINT_COMMITS},
                storage_options=storage.options or None,
            )
        except (DeltaError, OSError, ValueError) as error:
            found = cls.open(storage, name)
            if found is None:
                raise LakeUnusable(f"{storage.table(name)} cannot be made: {one_line(error)}") from error
        storage.sync_commits(name)
        storage.sync_directories(name)
        made = cls.open(storage, name)
        assert made is not None
        return made

    @property
    def version(self) -> int:
        return self.delta.version()

    @property
    def head(self) -> int:
        """The last committed_id exported: the table holds every event up to it, once."""
        return self.delta.transaction_version(EXPORT) or 0

    def description(self) -> TableDescription:
        try:
            described = msgspec.json.decode(self.delta.metadata().description or "", type=TableDescription)
        except msgspec.DecodeError:
            raise LakeUnusable(f"{self.storage.table(self.name)} is a Delta table but not a lake's") from None
        if (title := self.delta.metadata().name) != _name(self.name):
            raise LakeUnusable(
                f"{self.storage.table(self.name)} is not the table {self.name} of a lake but {title!r}"
            )
        if described.layout != LAYOUT:
            raise LakeUnusable(
                f"{self.storage.table(self.name)} has layout {described.layout}, this program knows {LAYOUT}: "
                "use the Unisono that wrote it, or a later one"
            )
        return described

    def require_reader_version(self) -> None:
        """Refuse a table in which another program switched on what this one does not read."""
        protocol = self.delta.protocol()
        if protocol.min_reader_version > READER_VERSION:
            features = ", ".join(protocol.reader_features or ()) or "column mapping or others"
            raise LakeUnusable(
                f"{self.storage.table(self.name)} needs a reader of version {protocol.min_reader_version} "
                f"({features}), which another program switched on: its files alone do not tell what it holds; put "
                "the table back from a backup of the lake"
            )

    def files(self) -> list[DataFile]:
        """The files of this version, by first committed_id; LakeUnusable unless all of them are ours and all are
        there."""
        files, uri = self.listed_files(), self.storage.table(self.name)
        require_own(self.name, uri, files)
        require_all_rows(self.name, uri, files, self.head, self.rows)
        return files

    def foreign_files(self) -> list[DataFile]:
        """Those that another program wrote, or of which the table no longer says what they hold."""
        return [file for file in self.listed_files() if not is_own(file)]

    def listed_files(self) -> list[DataFile]:
        """The files of this version as the table's log names them, nothing checked; 0 for what it does not say."""
        files = [
            DataFile(
                self.name,
                action["path"],
                action["size_bytes"],
                action.get("num_records") or 0,
                action.get("min.committed_id") or 0,
                action.get("max.committed_id") or 0,
                action.get("partition.bucket"),
                action.get("min.partition"),
                action.get("max.partition"),
                action.get("partition.model_version"),
                action.get("min.model_digest"),
            )
            for action in pa.table(self.delta.get_add_actions(flatten=True)).to_pylist()
        ]
        return sorted(files, key=lambda file: (file.first_id, file.last_id, file.path))

    @property
    def rows(self) -> int | None:
        """How many rows the table has by what was committed; None in one made before this was recorded."""
        added = self.delta.transaction_version(ROWS)
        if added is None:
            return None if self.version else 0
        return added - self._dropped

    @property
    def _dropped(self) -> int:
        return self.delta.transaction_version(DROPPED) or 0

    def _rows_transaction(self, new: Sequence[DataFile]) -> Transaction:
        """What a commit carries that adds these files; LakeUnusable when the table is not whole."""
        present = sum(file.rows for file in self.files())
        return Transaction(ROWS, present + self._dropped + sum(file.rows for file in new))

    def append(
        self,
        files: Sequence[DataFile],
        since: int,
        upto: int,
        notes: Mapping[str, Any],
        origin: Mapping[str, int] = {},
    ) -> None:
        """Add the events of `(since, upto]`; CommitConflict when the table does not stand at `since`.

        `origin`: where they come from, see `origins`.
        """
        self.require_head(since)
        adds = [_add(file, data_change=True) for file in files]
        transactions = [
            Transaction(EXPORT, upto),
            self._rows_transaction(files),
            *self._note_transactions(origin),
        ]
        self._commit(adds, [], transactions, {"from": since, "to": upto, **notes})

    def read_note(self, name: str) -> int | None:
        """What an export noted under this name; None when nothing was."""
        return self.delta.transaction_version(name)

    def write_notes(self, origin: Mapping[str, int]) -> None:
        """Note where the events come from, without adding any."""
        self._commit([], [], self._note_transactions(origin), dict(origin))

    def _note_transactions(self, origin: Mapping[str, int]) -> list[Transaction]:
        return [Transaction(name, value) for name, value in origin.items() if self.read_note(name) != value]

    def require_head(self, since: int) -> None:
        """Raise CommitConflict unless the table stands at `since`."""
        if self.head != since:
            raise CommitConflict(f"the table {self.name} stands at {self.head}, not at {since}")

    def folded_upto(self, model_version: int) -> int:
        """Up to where the snapshots of a model version hold every partition's events; 0 when there are none."""
        return self.delta.transaction_version(f"{SNAPSHOT}.{model_version}") or 0

    @property
    def snapshot_commits(self) -> int:
        """How many commits of snapshots there were."""
        return self.delta.transaction_version(SNAPSHOT) or 0

    def put_snapshots(
        self,
        new: Sequence[DataFile],
        folded: Mapping[int, int],
        notes: Mapping[str, Any],
        *,
        old: Sequence[DataFile] = (),
    ) -> None:
        """Add snapshots, and take `old` ones away; CommitConflict when others came since this version.

        `folded`: how far each of these model versions has got by it.
        """
        transactions = [Transaction(SNAPSHOT, self.snapshot_commits + 1)]
        transactions += [Transaction(f"{SNAPSHOT}.{version}", upto) for version, upto in folded.items()]
        transactions.append(self._rows_transaction(new))
        if old:
            transactions += self._rewrite_transactions(old, sum(file.rows for file in old))
        adds = [_add(file, data_change=True) for file in new]
        self._commit(adds, _removes(old, data_change=True), transactions, notes)

    def record_erasures(self, files: Sequence[DataFile], notes: Mapping[str, Any]) -> None:
        """Add records of erasures; CommitConflict when others were added since this version."""
        count = self.delta.transaction_version(ERASE) or 0
        transactions = [Transaction(ERASE, count + 1), self._rows_transaction(files)]
        self._commit([_add(file, data_change=True) for file in files], [], transactions, notes)

    def replace(
        self, old: Sequence[DataFile], new: Sequence[DataFile], notes: Mapping[str, Any], *, same_rows: bool
    ) -> None:
        """Put `new` in the place of `old`; CommitConflict when another rewrite came first.

        `same_rows`: the rows are the same ones, so who follows the table's changes need not look.
        """
        self.files()  # of a table that is not whole nothing is carried on
        self._replace(old, new, notes, same_rows=same_rows)

    def replace_foreign_files(
        self, old: Sequence[DataFile], new: Sequence[DataFile], notes: Mapping[str, Any]
    ) -> None:
        """As `replace` with the same rows, where some of `old` are files of another program."""
        self._replace(old, new, notes, same_rows=True)

    def clear_snapshots(self, notes: Mapping[str, Any]) -> None:
        """Remove all snapshots, those in files of other programs too; nothing counts as folded any more."""
        old = self.listed_files()
        versions = {file.model_version for file in old}
        transactions = [Transaction(SNAPSHOT, self.snapshot_commits + 1), Transaction(ROWS, self._dropped)]
        transactions += [Transaction(f"{SNAPSHOT}.{version}", 0) for version in versions]
        transactions += self._rewrite_transactions(old, 0)
        self._commit([], _removes(old, data_change=True), transactions, notes)

    def _replace(
        self, old: Sequence[DataFile], new: Sequence[DataFile], notes: Mapping[str, Any], *, same_rows: bool
    ) -> None:
        dropped = sum(file.rows for file in old) - sum(file.rows for file in new)
        if dropped and (same_rows or self.name != SNAPSHOTS):
            raise LakeUnusable(f"{len(new)} files of the table {self.name} would have lost {dropped} rows")
        transactions = self._rewrite_transactions(old, dropped)
        adds = [_add(file, data_change=not same_rows) for file in new]
        self._commit(adds, _removes(old, data_change=not same_rows), transactions, notes)

    def _rewrite_transactions(self, old: Sequence[DataFile], dropped: int) -> list[Transaction]:
        """What a commit carries that takes these files away, which must be there, and so many rows."""
        present = {file.path for file in self.listed_files()}
        gone = [file.path for file in old if file.path not in present]
        if gone:
            raise CommitConflict(f"{gone[0]} is no longer in the table {self.name}")
        count = Transaction(REWRITE, (self.delta.transaction_version(REWRITE) or 0) + 1)
        return [count, Transaction(DROPPED, self._dropped + dropped)] if dropped else [count]

    def _commit(
        self,
        adds: list[AddAction],
        removes: list[RemoveAction],
        transactions: list[Transaction],
        notes: Mapping[str, Any],
    ) -> None:
        try:
            self.delta.create_write_transaction(
                [*adds, *removes],
                "append",
                _SCHEMAS[self.name],
                _PARTITION_BY[self.name],
                commit_properties=CommitProperties(
                    custom_metadata={"unisono": dict(notes)}, app_transactions=transactions
                ),
            )
        except CommitFailedError as error:
            raise CommitConflict(
                f"another process changed the table {self.name} first: {one_line(error)}"
            ) from error
        except OSError as error:
            place = f"{self.storage.table(self.name)}/_delta_log"
            raise OSError(f"a commit could not be written to {place}: {one_line(error)}") from error
        self.storage.sync_commits(self.name)


def _add(file: DataFile, *, data_change: bool) -> AddAction:
    low: dict[str, Any] = {"committed_id": file.first_id}
    high: dict[str, Any] = {"committed_id": file.last_id}
    if file.first_partition is not None:
        low["partition"], high["partition"] = file.first_partition, file.last_partition
    if file.model_digest is not None:
        low["model_digest"] = high["model_digest"] = file.model_digest
    stats = {"numRecords": file.rows, "minValues": low, "maxValues": high, "nullCount": dict.fromkeys(low, 0)}
    now = time.time_ns() // 1_000_000
    return AddAction(
        file.path,
        file.bytes,
        _partition_values(file),
        now,
        data_change,
        json.dumps(stats, ensure_ascii=False),
    )


def _removes(files: Sequence[DataFile], *, data_change: bool) -> list[RemoveAction]:
    now = time.time_ns() // 1_000_000
    return [RemoveAction(file.path, data_change, now, file.bytes, _partition_values(file)) for file in files]


def _partition_values(file: DataFile) -> dict[str, str | None]:
    values = {"model_version": file.model_version, "bucket": file.bucket}
    return {name: str(value) for name, value in values.items() if value is not None}
