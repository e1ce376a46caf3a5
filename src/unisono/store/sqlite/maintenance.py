"""Keeping the embedded log (see `keeping`): each function here is the inside of one transaction of the writer.

Space. A file made by this version can shrink by some pages at a time (auto_vacuum is incremental); one made before
cannot, its free pages are used again until `rewrite` makes it anew. What is deleted is overwritten (secure_delete),
so free pages and the WAL, once it is empty, hold nothing of it. SQLite moves rows about in a page without wiping
where they stood, so a page in use may keep a copy of a row that was erased later: only writing the file anew is sure
to take that away. A short log is written anew beside its server; of a longer one the log notes that it is still due.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from unisono.protocol.tombstones import is_tombstone
from unisono.store.cluster import ModelBundle, ModelRefused
from unisono.store.maintenance import (
    PRUNE_BYTES_MAX,
    EraseResult,
    MaintenanceRefused,
    ReclaimProgress,
    Tombstone,
    require_archive,
    require_tombstones,
)
from unisono.store.sqlite import files
from unisono.store.sqlite.wal import WalCheckpointer
from unisono.store.statements import load_queries

RECLAIM_PAGES: Final = 64
"""Pages given back in one step, each of which may have to change places with one in use: some milliseconds."""

REWRITE_BYTES_MAX: Final = 64 << 20
"""A log up to this size is written anew between two groups, which takes less than a second."""

LookUp = Callable[[Iterable[str]], dict[str, int]]
"""Partition names → their numbers, of those that exist."""

_SQL = load_queries("sqlite")
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode


def set_archive(connection: apsw.Connection, location: str) -> None:
    require_archive(location)
    connection.execute(_SQL["set_archive"], (location,))


def record_model(
    connection: apsw.Connection, bundle: ModelBundle | None, *, replace: bool = False
) -> str | None:
    """Note the model in force; the digest its version had before, when `replace` let another take its place."""
    replaced = None
    if bundle is not None:
        known = connection.execute(_SQL["model_digest"], (bundle.version,)).get
        if known is not None and known != bundle.digest:
            replaced = str(known)
            if not replace:
                raise ModelRefused(
                    f"model version {bundle.version} has another content (digest {bundle.digest[:12]}) than the one "
                    f"this log was judged by under that version (digest {replaced[:12]}): raise model_version in "
                    "model.toml, or put the former content back (while developing a model: --allow-model-edits)"
                )
        files = msgspec.msgpack.encode(bundle.files)
        now_ms = time.time_ns() // 1_000_000
        connection.execute(_SQL["put_model"], (bundle.version, bundle.digest, files, now_ms))
    connection.execute(_SQL["set_model_in_force"], (None if bundle is None else bundle.version,))
    return replaced


def delete_oldest_events(connection: apsw.Connection, upto: int, limit: int, look_up: LookUp) -> int:
    """Move the oldest events to what deduplication remembers; how many."""
    pruned_to, head, archive = _row(connection, "extent")
    if archive is None:
        raise MaintenanceRefused("no archive is named for what leaves the log")
    last, partitions = _events_to_delete(connection, pruned_to, min(upto, head), limit)
    if last == pruned_to:
        return 0
    numbers = look_up(partitions)
    places = sorted((numbers[name], at) for name, at in partitions.items() if name in numbers)
    connection.execute(_SQL["remember_pruned_ids"], (pruned_to, last))
    connection.executemany(
        _SQL["prune_event_partitions"], [(number, pruned_to, last) for number, _ in places]
    )
    connection.executemany(_SQL["prune_partition"], places)
    connection.execute(_SQL["prune_events"], (pruned_to, last))
    connection.execute(_SQL["advance_pruned_to"], (last,))
    return int(last - pruned_to)


def _events_to_delete(
    connection: apsw.Connection, since: int, upto: int, limit: int
) -> tuple[int, dict[str, int]]:
    """The last of the events that go, and the last one of each of their partitions."""
    last, size = since, 0
    partitions: dict[str, int] = {}
    for committed_id, names, length in connection.execute(_SQL["oldest_events"], (since, upto, limit)):
        size += length
        if last > since and size > PRUNE_BYTES_MAX:
            return last, partitions
        if committed_id != last + 1:
            raise MaintenanceRefused(f"event {last + 1} is missing from the log: `unisono check` tells more")
        last = committed_id
        partitions.update(dict.fromkeys(_decode_names(names), committed_id))
    if last == since < upto:
        raise MaintenanceRefused(f"event {since + 1} is missing from the log: `unisono check` tells more")
    return last, partitions


def erase(
    connection: apsw.Connection, tombstones: Sequence[Tombstone], partitions: Sequence[str], look_up: LookUp
) -> EraseResult:
    """Tombstones in the place of events, and no snapshot that could hold what they said."""
    _, head, _ = _row(connection, "extent")
    require_tombstones(tombstones, head)
    replacing = {tombstone.committed_id: tombstone.event for tombstone in tombstones}
    concerned = dict.fromkeys(partitions)
    living: list[int] = []
    for committed_id, names, event in connection.execute(
        _SQL["events_to_erase"], (msgspec.json.encode(sorted(replacing)).decode(),)
    ):
        concerned.update(dict.fromkeys(_decode_names(names)))
        if not is_tombstone(event):
            living.append(committed_id)
    connection.executemany(_SQL["overwrite_event"], [(committed_id,) for committed_id in living])
    connection.executemany(
        _SQL["replace_event"], [(committed_id, replacing[committed_id]) for committed_id in living]
    )
    numbers = sorted(look_up(concerned).values())
    connection.execute(_SQL["drop_snapshots"], (msgspec.json.encode(numbers).decode(),))
    (erasures,) = _row(connection, "count_erasure")
    return EraseResult(len(living), tuple(concerned), erasures)


def reclaim(connection: apsw.Connection, checkpointer: WalCheckpointer) -> ReclaimProgress:
    """One step, outside any transaction: some free pages, then a short log anew that has traces, last the WAL."""
    free = int(connection.pragma("freelist_count"))
    unclean = bool(connection.execute(_SQL["read_unclean"]).get)
    if free and can_shrink(connection):
        connection.execute(f"PRAGMA incremental_vacuum({RECLAIM_PAGES})").fetchall()
        checkpointer.step()
        return ReclaimProgress(False, max(0, free - RECLAIM_PAGES), unclean)
    if unclean and int(connection.pragma("page_count")) * files.PAGE_BYTES <= REWRITE_BYTES_MAX:
        _write_anew(connection)
        return ReclaimProgress(False, 0)
    return ReclaimProgress(checkpointer.truncate(), free, unclean)


def can_shrink(connection: apsw.Connection) -> bool:
    """Whether free pages can be given back some at a time."""
    return int(connection.pragma("auto_vacuum")) == files.INCREMENTAL


def rewrite(connection: apsw.Connection, checkpointer: WalCheckpointer) -> None:
    """The whole file anew and the WAL empty, for a log of any size that nobody else has open."""
    _write_anew(connection)
    while not checkpointer.truncate():
        time.sleep(0.01)


def _write_anew(connection: apsw.Connection) -> None:
    """VACUUM: needs as much space again beside the file while it lasts, and then in the WAL."""
    connection.pragma("auto_vacuum", files.INCREMENTAL)
    directory = Path(connection.filename).parent
    with _large_temporary_files(connection, directory):
        connection.execute("VACUUM")
    connection.execute(_SQL["set_clean"])


@contextmanager
def _large_temporary_files(connection: apsw.Connection, directory: Path) -> Iterator[None]:
    """The copy VACUUM makes is as large as the log: on disk, where the log is, and not in memory."""
    name, before = "SQLITE_TMPDIR", os.environ.get("SQLITE_TMPDIR")
    connection.pragma("temp_store", "file")
    os.environ[name] = str(directory)
    try:
        yield
    finally:
        connection.pragma("temp_store", "memory")
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _row(connection: apsw.Connection, query: str) -> tuple[Any, ...]:
    (row,) = connection.execute(_SQL[query]).fetchall()
    return tuple(row)
