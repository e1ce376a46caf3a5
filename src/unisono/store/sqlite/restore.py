"""Restoring a backup of an embedded log into a new data directory, as a log of its own (DUR-08)."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import apsw
import msgspec

from unisono.store.copy import CopyRefused
from unisono.store.sqlite import files
from unisono.store.sqlite import identity as identities
from unisono.store.sqlite.backup import write_log_file
from unisono.store.sqlite.backup_files import BackupDirectory
from unisono.store.sqlite.log import SqliteLog
from unisono.store.sqlite.reader import unusable
from unisono.vocabulary import LogIdentity


class Restored(msgspec.Struct, frozen=True):
    """What the new directory holds."""

    events: int
    head: int
    identity: LogIdentity


def restore_log(source: Path, directory: Path, name: str | None = None) -> Restored:
    """Put the log at `source` into a new data directory, and make it another log.

    `source`: what `unisono backup` wrote to (`name` chooses a backup, by default the newest), or a directory with
    log.db in it, or that file. Raises CopyRefused where the directory has something in it, StoreUnusable where there
    is no log, and BackupDamaged where the backup is not what was written. A restore
    that was broken off leaves a log.db without its log.identity behind, which no server takes for the log it was.
    """
    where = source if source.is_dir() else source.parent
    if not source.is_dir() and source.name != files.LOG_FILE:
        raise CopyRefused(
            f"{source} is no backup: give a directory with {files.LOG_FILE} in it, or that file"
        )
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise CopyRefused(
            f"{directory} is not empty: restore into a new directory, and start the server there"
        )
    backups = source.is_dir() and bool(BackupDirectory(source).names())
    if name is not None and not backups:
        raise CopyRefused(f"{source} is not a directory of `unisono backup`: there is no {name} to choose")
    if backups:
        return _restore_backup(source, directory, name)
    try:
        with closing(files.connect_reader(where)) as backup:
            files.refuse_other_files(backup, where / files.LOG_FILE)
            files.prepare_directory(directory)
            backup.execute("VACUUM INTO ?", (str(directory / files.LOG_FILE),))
    except (apsw.Error, OSError) as error:
        raise unusable(where, error) from error
    return _finish(directory)


def _restore_backup(source: Path, directory: Path, name: str | None) -> Restored:
    """Into `directory`, which is new. Of a damaged backup nothing stays that could be taken for a log."""
    path = directory / files.LOG_FILE
    files.prepare_directory(directory)
    try:
        write_log_file(source, name, path)
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise unusable(directory, error) from error
        raise
    return _finish(directory)


def _finish(directory: Path) -> Restored:
    _identify(directory, LogIdentity(identities.new_id(), 1))
    with closing(SqliteLog.open(directory)) as log:
        extent = log.extent()
        return Restored(extent.head - extent.pruned_to, extent.head, log.identity())


def _identify(directory: Path, identity: LogIdentity) -> None:
    """Make the copy durable, and another log than the one it was copied from."""
    lock = files.DirectoryLock(directory)
    try:
        with (directory / files.LOG_FILE).open("rb") as file:
            os.fsync(file.fileno())
        files.connect_writer(directory, identity).close()
    except (apsw.Error, OSError) as error:
        raise unusable(directory, error) from error
    finally:
        lock.release()
