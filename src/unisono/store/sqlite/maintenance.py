"""Maintenance of the embedded log: the statements inside one transaction of the writer (see `store/maintenance.py`).

Space: a file made by this version shrinks by some pages at a time (auto_vacuum is incremental). It does so already
while events leave and while the index is swept: returning a page costs SQLite more the more are free. A file made
before cannot shrink: its free pages are reused until `rewrite`. Deleted content is overwritten (secure_delete), so
free pages and a truncated WAL have no traces of it. SQLite moves rows within a page without overwriting the old
place, so a page in use may keep a copy of a row that was erased later. Only rewriting the file removes that for
certain: a short log is rewritten while its server runs, a longer one is marked `unclean`.
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
    NO_ARCHIVE,
    PRUNE_BYTES_MAX,
    PRUNE_EVENT_BYTES,
    EraseResult,
    MaintenanceRefused,
    ReclaimProgress,
    Tombstone,
    missing_event,
    require_archive,
    require_tombstones,
)
from unisono.store.sqlite import files
from unisono.store.sqlite.wal import WalCheckpointer
from unisono.store.statements import load_queries

RECLAIM_PAGES: Final = 64
"""Pages returned to the file system in one step, each possibly swapped with one in use: a few milliseconds."""

RECLAIM_PAGES_ALONE: Final = 4_096
"""The same where nobody waits: 16 MiB, written to the WAL at most once."""

FREE_PAGES_MAX: Final = 16_384
"""With more free pages (64 MiB), pruning and sweeping return some to the file system as they go. SQLite searches the
list of free pages for each that it returns, so the list is kept short however much leaves."""

SWEEP_ROWS: Final = 1_000
SWEEP_ROWS_ALONE: Final = 50_000
"""Index rows of pruned events removed in one step, and partitions looked at: some milliseconds, or a fraction of a
second where nobody waits."""

SWEEP_SHARE: Final = 8
"""A sweep is due when one event has left for so many events that remain and partitions that there are. So what it
looks at in vain is in proportion to what it removes, and the index is larger by an eighth at most."""

REWRITE_BYTES_MAX: Final = 64 << 20
"""A log up to this size is rewritten between two groups, which takes less than a second."""

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
    """Record the model in force; returns the version's former digest when `replace` overwrote it."""
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


def delete_oldest_events(connection: apsw.Connection, upto: int, limit: int) -> int:
    """Delete the oldest events up to `upto`, and remember their ids for deduplication; how many.

    Everything here is in the order of the events. Their rows in `event_ids` stay; those in the index of partitions
    are removed later, by `sweep`.
    """
    pruned_to, head, archive = _row(connection, "extent")
    if archive is None:
        raise MaintenanceRefused(NO_ARCHIVE)
    last = _last_to_delete(connection, pruned_to, min(upto, head), limit)
    if last == pruned_to:
        return 0
    for query in ("remember_pruned_ids", "prune_events"):
        connection.execute(_SQL[query], (pruned_to, last))
    connection.execute(_SQL["advance_pruned_to"], (last,))
    return int(last - pruned_to)


def _last_to_delete(connection: apsw.Connection, since: int, upto: int, limit: int) -> int:
    last, size = since, 0
    for committed_id, length in connection.execute(_SQL["oldest_events"], (since, upto, limit)):
        size += length
        if last > since and size > _prune_bytes_max(limit):
            return last
        if committed_id != last + 1:
            raise MaintenanceRefused(missing_event(last + 1))
        last = committed_id
    if last == since < upto:
        raise MaintenanceRefused(missing_event(since + 1))
    return last


def _prune_bytes_max(limit: int) -> int:
    return max(PRUNE_BYTES_MAX, limit * PRUNE_EVENT_BYTES)


def sweep(connection: apsw.Connection, rows: int) -> ReclaimProgress | None:
    """Remove some index rows of events that have left, about so many, if a sweep is due and few pages are free.

    A sweep visits all partitions in the order of their index, so each page of it is changed once. `pruned_to` of a
    partition is set when its rows go; until then the rows themselves say what has left.
    """
    if many_pages_are_free(connection):
        return None
    pruned_to, swept_to, upto, after, rest = _row(connection, "sweep_state")
    if upto == swept_to:
        if (pruned_to - swept_to) * SWEEP_SHARE < max(rest, SWEEP_SHARE):
            return None
        upto, after = pruned_to, 0
        connection.execute(_SQL["begin_sweep"], (upto,))
    listed: list[tuple[int, int]] = []
    left, looked_at = rows, 0
    for number, count, last in connection.execute(_SQL["sweep_partitions"], (after, upto, rows, rows)):
        if count >= left:  # the rest of a long one is removed by the next steps
            listed.append((number, connection.execute(_SQL["sweep_part"], (number, left)).get))
            break
        left -= count
        if count:
            listed.append((number, last))
        after, looked_at = number, looked_at + 1
    else:
        if looked_at < rows:
            connection.execute(_SQL["end_sweep"])
    connection.executemany(_SQL["sweep_event_partitions"], listed)
    connection.executemany(_SQL["sweep_partition"], listed)
    connection.execute(_SQL["advance_sweep"], (after,))
    return ReclaimProgress(False, int(connection.pragma("freelist_count")), sweeping=True)


def erase(
    connection: apsw.Connection, tombstones: Sequence[Tombstone], partitions: Sequence[str], look_up: LookUp
) -> EraseResult:
    """Replace events by tombstones, and drop the snapshots that may contain their text."""
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


def reclaim(connection: apsw.Connection, checkpointer: WalCheckpointer, *, alone: bool) -> ReclaimProgress:
    """One step, outside any transaction: return some free pages, or rewrite a short unclean log, or truncate the
    WAL. `alone`: nobody waits for it."""
    pages = RECLAIM_PAGES_ALONE if alone else RECLAIM_PAGES
    free = int(connection.pragma("freelist_count"))
    unclean = bool(connection.execute(_SQL["read_unclean"]).get)
    if free and can_shrink(connection):
        connection.execute(f"PRAGMA incremental_vacuum({pages})").fetchall()
        checkpointer.step()
        return ReclaimProgress(False, max(0, free - pages), unclean)
    if unclean and int(connection.pragma("page_count")) * files.PAGE_BYTES <= REWRITE_BYTES_MAX:
        _vacuum(connection)
        return ReclaimProgress(False, 0)
    return ReclaimProgress(checkpointer.truncate(), free, unclean)


def return_excess(connection: apsw.Connection, checkpointer: WalCheckpointer, limit: int) -> None:
    """Outside any transaction, beside pruning so many events at a time: keep the list of free pages short.

    Returns at most as many pages as one step of pruning frees.
    """
    if many_pages_are_free(connection):
        excess = int(connection.pragma("freelist_count")) - FREE_PAGES_MAX
        freed_max = _prune_bytes_max(limit) // files.PAGE_BYTES
        connection.execute(f"PRAGMA incremental_vacuum({min(excess, freed_max)})").fetchall()
        checkpointer.step()


def many_pages_are_free(connection: apsw.Connection) -> bool:
    """Whether pages are to be returned before more become free. An unclean log is rewritten at the end."""
    return (
        int(connection.pragma("freelist_count")) > FREE_PAGES_MAX
        and can_shrink(connection)
        and not connection.execute(_SQL["read_unclean"]).get
    )


def can_shrink(connection: apsw.Connection) -> bool:
    """Whether free pages can be returned to the file system some at a time."""
    return int(connection.pragma("auto_vacuum")) == files.INCREMENTAL


def rewrite(connection: apsw.Connection, checkpointer: WalCheckpointer) -> None:
    """Rewrite the whole file and truncate the WAL; nobody else may have the log open."""
    _vacuum(connection)
    while not checkpointer.truncate():
        time.sleep(0.01)


def _vacuum(connection: apsw.Connection) -> None:
    """VACUUM: needs the file's size again on disk while it runs, and then in the WAL."""
    connection.pragma("auto_vacuum", files.INCREMENTAL)
    directory = Path(connection.filename).parent
    with _large_temporary_files(connection, directory):
        connection.execute("VACUUM")
    connection.execute(_SQL["set_clean"])


@contextmanager
def _large_temporary_files(connection: apsw.Connection, directory: Path) -> Iterator[None]:
    """Put VACUUM's copy, which is as large as the log, on the log's disk and not in memory."""
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
