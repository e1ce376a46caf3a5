"""The lake's Delta tables: creating them, listing their files, and committing to them exactly once.

Delta application transactions make concurrent commits safe: of two commits with the same one, delta-rs refuses one.

- `unisono.export` is the last committed_id exported to a table. A commit that adds events states the id it starts
  from, and is refused unless the table still ends there;
- `unisono.rewrite` counts commits that replace files. delta-rs lets two writers remove the same file, one of them an
  OPTIMIZE of another program, so such a commit is the version after one that has these files, or is not made;
- `unisono.snapshot` counts commits of snapshots, and `unisono.snapshot.V` is how far every partition has been folded
  under model version V, while there are snapshots of V;
- `unisono.erase` counts records of erasures, so that each event is recorded once;
- `unisono.rows` and `unisono.dropped` count the rows added and those removed by rewrites, so that missing rows are
  noticed. They change only in commits that carry one of the above.

Data files have unique names and are durable before a commit names them. Files of a killed job are in no table: nobody
reads them, and a vacuum removes them. A job whose commit is refused removes its files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from unisono.lake.columns import ERASURE_SCHEMA, LOG_SCHEMA, PARTITION_SCHEMA, SNAPSHOT_SCHEMA
from unisono.lake.commit_retry import CONFLICTS_MAX
from unisono.lake.errors import CommitConflict, ForeignFiles, LakeUnusable, one_line
from unisono.lake.file_actions import add_action, listed_file, remove_actions
from unisono.lake.file_checks import is_own, require_all_rows, require_own
from unisono.lake.foreign_commits import files_in_order
from unisono.lake.log_retention import LOG_KEPT, LOG_RETENTION, hooks_after
from unisono.lake.remedies import remedy
from unisono.lake.storage import BY_PARTITION, ERASURES, LOG, SNAPSHOTS, Storage, delta_name
from unisono.lake.write import DataFile

EXPORT: Final = "unisono.export"
REWRITE: Final = "unisono.rewrite"
SNAPSHOT: Final = "unisono.snapshot"
ERASE: Final = "unisono.erase"
ROWS: Final = "unisono.rows"
DROPPED: Final = "unisono.dropped"

BUCKETS: Final = 16
"""Files per run of a full export; a partition's history is in one of these parts of the table."""

BUCKETS_MAX: Final = 1_024

CHECKPOINT_COMMITS: Final = "32"
"""Commits between Delta checkpoints, which opening a table reads one by one."""

LAYOUT: Final = 1
"""Version of what this program requires of the tables beyond the Delta protocol."""

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
"""Of the Delta protocol. From 2 on, files alone do not define the rows (column mapping, deletion vectors)."""

_TITLES: Final[Mapping[str, str]] = {
    LOG: "committed events, sorted by committed_id",
    BY_PARTITION: "one row per partition and event, bucketed by partition",
    SNAPSHOTS: "states of partitions, folded by a model up to a committed_id",
    ERASURES: "events whose content was erased, recorded before it was",
}


class TableDescription(msgspec.Struct, frozen=True):
    """The content of a table's description."""

    layout: int
    buckets: int
    title: str = ""


class Table:
    """One version of a Delta table; a commit is checked for conflicts with every later one."""

    def __init__(self, storage: Storage, name: str, delta: DeltaTable) -> None:
        self.storage = storage
        self.name = name
        self.delta = delta

    @classmethod
    def open(cls, storage: Storage, name: str, version: int | None = None) -> Table | None:
        """The current version of the table, or this one; None when it is missing."""
        try:
            delta = DeltaTable(storage.table(name), version, storage_options=storage.options or None)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError, ValueError) as error:
            raise LakeUnusable(f"{storage.table(name)} cannot be opened: {one_line(error)}") from error
        found = cls(storage, name, delta)
        found.description()  # refuses a table of another program
        found.require_reader_version()
        return found

    @classmethod
    def make(cls, storage: Storage, name: str, buckets: int) -> Table:
        """The table, created if it is missing; of two concurrent calls one finds the other's table."""
        found = cls.open(storage, name)
        if found is not None:
            return found
        storage.require_unused(name)
        described = TableDescription(LAYOUT, buckets, _TITLES[name])
        try:
            DeltaTable.create(
                storage.table(name),
                _SCHEMAS[name],
                mode="ignore",
                partition_by=_PARTITION_BY[name],
                name=delta_name(name),
                description=msgspec.json.encode(described).decode(),
                configuration={"delta.checkpointInterval": CHECKPOINT_COMMITS, LOG_RETENTION: LOG_KEPT},
                storage_options=storage.options or None,
            )
        except (DeltaError, OSError, ValueError) as error:
            found = cls.open(storage, name)
            if found is None:
                raise LakeUnusable(f"{storage.table(name)} cannot be created: {one_line(error)}") from error
        storage.sync_commits(name, -1)
        storage.sync_directories(name)
        made = cls.open(storage, name)
        assert made is not None
        return made

    @property
    def version(self) -> int:
        return self.delta.version()

    @property
    def head(self) -> int:
        """The last committed_id exported: the table has every event up to it, once."""
        return self.delta.transaction_version(EXPORT) or 0

    def description(self) -> TableDescription:
        uri = self.storage.table(self.name)
        try:
            described = msgspec.json.decode(self.delta.metadata().description or "", type=TableDescription)
        except msgspec.DecodeError:
            raise LakeUnusable(
                f"{uri} is a Delta table, but not one of a lake by its description: where another program changed "
                "that, restore the version of the table before (RESTORE of any Delta writer)"
            ) from None
        if (title := self.delta.metadata().name) != delta_name(self.name):
            raise LakeUnusable(f"{uri} is not the table {self.name} of a lake but {title!r}")
        if not 1 <= described.layout <= LAYOUT:
            raise LakeUnusable(
                f"{uri} has layout {described.layout}, this program knows {LAYOUT}: use the Unisono that wrote it, "
                "or a later one"
            )
        return described

    def require_reader_version(self) -> None:
        """Refuse a table in which another program enabled features that this one does not read."""
        protocol = self.delta.protocol()
        if protocol.min_reader_version > READER_VERSION:
            features = ", ".join(protocol.reader_features or ()) or "column mapping or others"
            raise LakeUnusable(
                f"{self.storage.table(self.name)} needs a reader of version {protocol.min_reader_version} "
                f"({features}), which another program enabled: its files alone do not define its rows; restore the "
                "table from a backup of the lake"
            )

    def files(self) -> list[DataFile]:
        """The files by first committed_id; LakeUnusable when another program wrote one, or rows are missing."""
        files, uri = self.listed_files(), self.storage.table(self.name)
        require_own(self.name, uri, files)
        require_all_rows(self.name, uri, files, self.head, self.rows)
        return files

    def readable_files(self) -> list[DataFile]:
        """The files to read this version's rows from, in the table's order, also where another program rearranged
        them; ForeignFiles when these are snapshots that cannot be checked."""
        try:
            return self.files()
        except ForeignFiles:
            found = files_in_order(self)
            if found is None:
                raise
            return found

    def foreign_files(self) -> list[DataFile]:
        """Files that another program wrote, or whose statistics it changed."""
        return [file for file in self.listed_files() if not is_own(file)]

    def listed_files(self) -> list[DataFile]:
        """The files of this version as the Delta log names them, unchecked; 0 for missing statistics."""
        actions = pa.table(self.delta.get_add_actions(flatten=True)).to_pylist()
        files = [listed_file(self.name, action) for action in actions]
        return sorted(files, key=lambda file: (file.first_id, file.last_id, file.path))

    @property
    def rows(self) -> int | None:
        """How many rows were committed; None in a table created before this was recorded."""
        added = self.delta.transaction_version(ROWS)
        if added is None:
            return None if self.version else 0
        return added - self._dropped

    @property
    def _dropped(self) -> int:
        return self.delta.transaction_version(DROPPED) or 0

    def _rows_transaction(self, new: Sequence[DataFile]) -> Transaction:
        """The row count after adding these files; LakeUnusable when the table is not complete."""
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
        """Add the events of `(since, upto]`; CommitConflict when the table does not end at `since`.

        `origin`: notes on the log they come from, see `origin.py`.
        """
        self.require_head(since)
        adds = [add_action(file, data_change=True) for file in files]
        transactions = [
            Transaction(EXPORT, upto),
            self._rows_transaction(files),
            *self._note_transactions(origin),
        ]
        self._commit(adds, [], transactions, {"from": since, "to": upto, **notes})

    def read_note(self, name: str) -> int | None:
        """The note of this name; None when there is none."""
        return self.delta.transaction_version(name)

    def write_notes(self, origin: Mapping[str, int]) -> None:
        """Record notes without adding events."""
        self._commit([], [], self._note_transactions(origin), dict(origin))

    def _note_transactions(self, origin: Mapping[str, int]) -> list[Transaction]:
        return [Transaction(name, value) for name, value in origin.items() if self.read_note(name) != value]

    def require_head(self, since: int) -> None:
        """Raise CommitConflict unless the table ends at `since`."""
        if self.head != since:
            raise CommitConflict(f"the table {self.name} ends at event {self.head}, not at {since}")

    def folded_upto(self, model_version: int) -> int:
        """Up to which event every partition is folded under a model version; 0 when none is, or none is left."""
        left = any(file.model_version == model_version for file in self.listed_files())
        return (self.delta.transaction_version(f"{SNAPSHOT}.{model_version}") or 0) if left else 0

    @property
    def snapshot_commits(self) -> int:
        """The number of commits of snapshots."""
        return self.delta.transaction_version(SNAPSHOT) or 0

    def put_snapshots(
        self,
        new: Sequence[DataFile],
        folded: Mapping[int, int],
        notes: Mapping[str, Any],
        *,
        old: Sequence[DataFile] = (),
        counts: Mapping[str, int] = {},
    ) -> None:
        """Add snapshots and remove `old` ones; CommitConflict when others were committed since this version.

        `folded`: model version → up to which event every partition is folded then. `counts`: notes, as in `append`.
        """
        # Written as they count: the first new snapshot would revive the mark of those that another program removed.
        versions = {file.model_version or 0 for file in new}
        marks = {version: self.folded_upto(version) for version in versions} | dict(folded)
        transactions = [Transaction(SNAPSHOT, self.snapshot_commits + 1), self._rows_transaction(new)]
        transactions += [Transaction(f"{SNAPSHOT}.{version}", upto) for version, upto in marks.items()]
        transactions += self._note_transactions(counts)
        if old:
            transactions += self._rewrite_transactions(old, sum(file.rows for file in old))
        adds = [add_action(file, data_change=True) for file in new]
        self._commit(adds, remove_actions(old, data_change=True), transactions, notes)

    def record_erasures(self, files: Sequence[DataFile], notes: Mapping[str, Any]) -> None:
        """Add records of erasures; CommitConflict when others were added since this version."""
        count = self.delta.transaction_version(ERASE) or 0
        transactions = [Transaction(ERASE, count + 1), self._rows_transaction(files)]
        self._commit([add_action(file, data_change=True) for file in files], [], transactions, notes)

    def replace(
        self,
        old: Sequence[DataFile],
        new: Sequence[DataFile],
        notes: Mapping[str, Any],
        *,
        same_rows: bool,
        foreign: bool = False,
    ) -> None:
        """Replace `old` by `new` in the current version; CommitConflict when it lacks one of `old`.

        `same_rows`: the rows do not change, so readers of the table's change feed can skip the commit. `foreign`:
        another program wrote some of `old`.
        """
        dropped = sum(file.rows for file in old) - sum(file.rows for file in new)
        if dropped and (same_rows or self.name != SNAPSHOTS):
            raise LakeUnusable(f"{len(new)} files of the table {self.name} would lose {dropped} rows")
        adds = [add_action(file, data_change=not same_rows) for file in new]
        removes = remove_actions(old, data_change=not same_rows)
        for left in reversed(range(CONFLICTS_MAX)):
            now = Table.open(self.storage, self.name) or self
            if not foreign:
                now.files()  # refuses a table that is not complete
            transactions = now._rewrite_transactions(old, dropped)
            try:
                now._commit(adds, removes, transactions, notes)
            except CommitConflict:  # whatever came first may leave all of `old` there
                if not left:
                    raise
            else:
                return

    def clear_snapshots(self, notes: Mapping[str, Any]) -> None:
        """Remove all snapshots, also in files of other programs; every model version starts from 0 again."""
        old = self.listed_files()
        transactions = [Transaction(SNAPSHOT, self.snapshot_commits + 1), Transaction(ROWS, self._dropped)]
        transactions += self._rewrite_transactions(old, 0)
        self._commit([], remove_actions(old, data_change=True), transactions, notes)

    def _rewrite_transactions(self, old: Sequence[DataFile], dropped: int) -> list[Transaction]:
        """The transactions of a commit that removes these files and `dropped` rows; CommitConflict if one is gone."""
        present = {file.path for file in self.listed_files()}
        if gone := [file.path for file in old if file.path not in present]:
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
        """Files are removed by the version after this one, or not at all."""
        try:
            if adds:
                self._add_columns()
            self.delta.create_write_transaction(
                [*adds, *removes],
                "append",
                _SCHEMAS[self.name],
                _PARTITION_BY[self.name],
                commit_properties=CommitProperties(
                    custom_metadata={"unisono": dict(notes)},
                    app_transactions=transactions,
                    max_commit_retries=0 if removes else None,
                ),
                post_commithook_properties=hooks_after(self.version + 1),
            )
        except CommitFailedError as error:
            now = Table.open(self.storage, self.name)
            if now is not None and now.version == self.version:
                raise LakeUnusable(
                    f"{self.storage.table(self.name)} takes no commits of this program: {one_line(error)}: another "
                    f"program changed the table; {remedy(self.name)}"
                ) from error
            raise CommitConflict(
                f"another process committed to the table {self.name} first: {one_line(error)}"
            ) from error
        except OSError as error:
            place = f"{self.storage.table(self.name)}/_delta_log"
            raise OSError(f"commit to {place} failed: {one_line(error)}") from error
        self.storage.sync_commits(self.name, self.version)

    def _add_columns(self) -> None:
        """Add columns that a table of an older version lacks, where its files are read as null; CommitConflict when
        another commit came first, because the caller's checks were of the version before it."""
        known = {field.name for field in self.delta.schema().fields}
        columns = Schema.from_arrow(_SCHEMAS[self.name]).fields
        missing = [field for field in columns if field.name not in known]
        if missing:
            before = self.version
            self.delta.alter.add_columns(missing)
            self.storage.sync_commits(self.name, before)
            if self.version != before + 1:
                raise CommitConflict(f"another process committed to the table {self.name} first")
