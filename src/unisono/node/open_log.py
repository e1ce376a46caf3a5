"""Opens a server's log and archive for reading, from its settings."""

from __future__ import annotations

from pathlib import Path

from unisono.config import Settings
from unisono.lake.cold.archive import Archive
from unisono.store.port import LogReader
from unisono.store.postgres.timeouts import Timeouts
from unisono.store.sqlite.reader import SqliteReader


def open_archive(settings: Settings, cache_bytes: int) -> Archive:
    """The archive with the events that were pruned from the log; it is opened when first needed."""
    return Archive(settings.archive, settings.archive_options, cache_bytes=cache_bytes)


def open_reader(settings: Settings) -> LogReader:
    if settings.store is None:
        return SqliteReader.open(Path(settings.data))
    from unisono.store.postgres.log import PostgresReader

    return PostgresReader.open(settings.store, timeouts=store_timeouts(settings))


def store_timeouts(settings: Settings) -> Timeouts:
    """The timeouts of the shared log."""
    return Timeouts(
        connect_s=settings.store_connect_timeout_s,
        peer_s=settings.store_peer_timeout_s,
        lock_hold_s=settings.store_group_timeout_s,
        lock_wait_s=settings.store_lock_timeout_s,
        statement_s=settings.store_statement_timeout_s,
        answer_s=settings.store_answer_timeout_s,
    )
