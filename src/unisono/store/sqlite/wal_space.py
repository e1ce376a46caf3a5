"""Room for the WAL: blocks of its file that are written before commits need them.

A commit that makes the file longer waits for the file system to record the new length as well, which takes about as
long again as the sync of its own bytes. A commit within blocks that were written before does not. After a checkpoint
the WAL is used from its beginning again, so under load its file soon has all it needs, but a server that commits now
and then would be in the slow part most of its life. So zeros are appended: step by step while nobody commits, and in
larger steps where commits have used up what was there. SQLite takes them for the end of the WAL, as it does the
frames of an earlier round that stand there otherwise.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from shutil import disk_usage
from typing import Final

import apsw

logger = logging.getLogger("unisono.store")

IDLE_STEP_BYTES: Final = 1024 * 1024
"""Appended at a time while nobody commits. A commit that arrives meanwhile waits a millisecond or two on an ordinary
disk."""

IDLE_S: Final = 0.2
"""How long nobody has committed then, and how far apart such steps are. A little less than the authority waits for
messages: with messages of other kinds it comes by more often, and these are not to wait for room each time."""

LOADED_STEP_BYTES: Final = 4 * 1024 * 1024
"""Appended at a time between commits that have used up what was there. Each of them would take longer without it, and
fewer than one in a hundred waits for it."""

FREE_BYTES_MIN: Final = 1 << 30
"""On a disk with less left, the log needs it more: what is in the WAL goes into the database before the WAL's file
gets shorter, also at the start after a crash."""

_WRITE_BYTES: Final = 64 * 1024
"""SQLite writes pages; its interface to files refuses some lengths from 128 KiB on."""

_OPEN: Final = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_WAL


class _NoRoom(Exception):
    """Room cannot be made, and nothing of the log was touched."""


class WalSpace:
    """Appends zeros to the WAL's file, up to `bytes_max`. All methods belong to the writer's thread.

    Invariant: it writes behind the end of the file and with SQLite's lock for writers, so never over a frame. The
    file is opened with the log and stays open: another one may be at its path later, if the directory was moved.
    """

    def __init__(self, writer: apsw.Connection, bytes_max: int, free_bytes_min: int) -> None:
        """`free_bytes_min`: see above."""
        self._writer = writer
        self._path = Path(writer.filename_wal)  # elsewhere, if log.db is a link
        self._bytes_max = bytes_max
        self._free_bytes_min = free_bytes_min
        self._end = 0
        """The length of the file when it was last looked at; it may be longer by now."""
        self._used = 0
        self._quiet_since = -math.inf
        """The time of the last commit or step."""
        self._file: apsw.VFSFile | None = None
        try:
            self._file = apsw.VFSFile("", str(self._path), [_OPEN, 0])
        except apsw.CantOpenError as error:  # no descriptor is left, say
            self._give_up(error)

    def keep(self, used: int, now: float) -> None:
        """Append a step if there is need for it, durably. `used`: bytes of the WAL; `now`: seconds of any clock.

        Without the space for it nothing is left behind; that is logged and not tried again: commits need less.
        """
        if self._end >= self._bytes_max:
            return
        if used != self._used:
            self._used, self._quiet_since = used, now
            step = LOADED_STEP_BYTES if self._end - used < IDLE_STEP_BYTES else 0
        else:
            step = IDLE_STEP_BYTES if now - self._quiet_since >= IDLE_S else 0
        if not step:
            return
        self._quiet_since = now
        try:
            self._append(step)
        except _NoRoom as error:
            self._give_up(error)

    def truncated(self) -> None:
        """The file is empty now."""
        self._end = 0

    def close(self) -> None:
        if self._file is not None:
            self._file.xClose()
            self._file = None

    def _give_up(self, error: Exception) -> None:
        self._bytes_max = 0
        logger.warning("no room for the write-ahead log, commits may be slower: %s", error)

    def _append(self, step: int) -> None:
        assert self._file is not None, "without a file there is no room to make"
        file = self._file
        try:
            free = disk_usage(self._path.parent).free
        except OSError as error:  # the directory was moved, say: the log goes on with the files it has
            raise _NoRoom(str(error)) from error
        if free < self._free_bytes_min:
            return
        try:
            self._writer.execute("BEGIN IMMEDIATE")
        except apsw.BusyError:  # another program changes the log, which only its writer should
            return
        try:
            self._end = file.xFileSize()
            wanted = min(step, self._bytes_max - self._end)
            if wanted > 0:
                self._write_zeros(file, wanted)
        finally:
            self._writer.execute("ROLLBACK")

    def _write_zeros(self, file: apsw.VFSFile, wanted: int) -> None:
        """A failed write harms nobody, whatever its reason. A failed sync is an error of the log."""
        try:
            for start in range(0, wanted, _WRITE_BYTES):
                file.xWrite(bytes(min(_WRITE_BYTES, wanted - start)), self._end + start)
        except apsw.Error as error:
            file.xTruncate(self._end)
            raise _NoRoom(str(error)) from error
        file.xSync(apsw.SQLITE_SYNC_NORMAL | apsw.SQLITE_SYNC_DATAONLY)
        self._end += wanted
