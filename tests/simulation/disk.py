"""A disk that loses, tears and reorders what was not synced, fails on request, and is full at some size.

SQLite writes through it to real files, so that everything else sees them. What is durable is kept in memory; a power
failure rewrites the files to that, plus whatever of the rest happened to reach the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import apsw

from unisono.store.sqlite.wal import WalCheckpointer

SECTOR_BYTES = 512
"""A torn write leaves whole sectors of it."""


class UnsyncedWrite:
    """Bytes at a place, or, without bytes, a truncation to it."""

    __slots__ = ("data", "offset")

    def __init__(self, offset: int, data: bytes | None) -> None:
        self.offset = offset
        self.data = data

    def apply(self, content: bytearray, random: Random | None = None) -> None:
        """Do it; with a random source only some of its sectors, or none."""
        if random is not None and random.random() < 0.5:
            return
        if self.data is None:
            del content[self.offset :]
            return
        if len(content) < self.offset:
            content.extend(bytes(self.offset - len(content)))
        torn = random is not None and len(self.data) > SECTOR_BYTES and random.random() < 0.5
        for start in range(0, len(self.data), SECTOR_BYTES):
            if torn and random is not None and random.random() < 0.5:
                continue
            part = self.data[start : start + SECTOR_BYTES]
            place = self.offset + start
            if len(content) < place:
                content.extend(bytes(place - len(content)))
            content[place : place + len(part)] = part


class SimulatedDisk:
    """The files below one directory: one machine."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._durable: dict[Path, bytearray] = {}
        self._unsynced: dict[Path, list[UnsyncedWrite]] = {}
        self.calls = 0
        self.fail_at: int | None = None
        """The call of write or sync that fails, counted from 1."""
        self.full = False
        self.ignoring = False
        """While connections of a dead process are closed."""

    def has(self, path: Path) -> bool:
        return path.is_relative_to(self.directory)

    def opened(self, path: Path) -> None:
        if path not in self._durable:
            self._durable[path] = bytearray(path.read_bytes() if path.exists() else b"")
            self._unsynced[path] = []

    def deleted(self, path: Path) -> None:
        self._durable.pop(path, None)
        self._unsynced.pop(path, None)

    def write(self, path: Path, offset: int, data: bytes | None) -> None:
        self._call("write")
        if self.full and data is not None:
            raise apsw.FullError("the simulated disk is full")
        self._unsynced[path].append(UnsyncedWrite(offset, data))

    def sync(self, path: Path) -> None:
        unsynced, self._unsynced[path] = self._unsynced[path], []
        self._call("sync")  # what a failed sync should have written is never written: the kernel forgets it
        for write in unsynced:
            write.apply(self._durable[path])

    def _call(self, what: str) -> None:
        self.calls += 1
        if self.fail_at is not None and self.calls >= self.fail_at:
            raise apsw.IOError(f"the simulated disk fails at its {what}")

    def crash(self, close: Callable[[], None], random: Random | None) -> None:
        """The machine's processes are gone; what their connections do while they are closed never happened.

        Without a random source only the processes died, and the kernel has everything. With one the power failed:
        every file is what was synced, and parts of what was not, in any combination.
        """
        if random is None:
            images = {path: bytearray(path.read_bytes()) for path in self._durable if path.exists()}
        else:
            for path, content in self._durable.items():
                for write in self._unsynced[path]:
                    write.apply(content, random)
            self._unsynced = {path: [] for path in self._durable}
            images = {path: bytearray(content) for path, content in self._durable.items()}
        self.ignoring = True
        close()
        self.ignoring = False
        self.repair()
        for path, content in images.items():
            path.write_bytes(content)

    def repair(self) -> None:
        self.fail_at, self.full, self.calls = None, False, 0


class _File(apsw.VFSFile):
    def __init__(self, base: str, name: Any, flags: list[int], disk: SimulatedDisk, path: Path) -> None:
        super().__init__(base, name, flags)
        self._disk, self._path = disk, path
        disk.opened(path)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        if self._disk.ignoring:
            return
        self._disk.write(self._path, offset, bytes(data))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        if self._disk.ignoring:
            return
        self._disk.write(self._path, newsize, None)
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        if not self._disk.ignoring:
            self._disk.sync(self._path)


class SimulatedVfs(apsw.VFS):
    """The default VFS while a simulation runs."""

    NAME = "simulated"

    def __init__(self) -> None:
        self._base = apsw.vfs_names()[0]
        self.disks: list[SimulatedDisk] = []
        self.random = Random(0)
        super().__init__(self.NAME, self._base, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> Any:  # noqa: N802
        path = Path(name.filename() if isinstance(name, apsw.URIFilename) else name) if name else None
        for disk in self.disks:
            if path is not None and disk.has(path):
                return _File(self._base, name, flags, disk, path)
        return apsw.VFSFile(self._base, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        disk = next((disk for disk in self.disks if disk.has(Path(filename))), None)
        if disk is not None and disk.ignoring:
            return
        super().xDelete(filename, syncdir)
        if disk is not None:
            disk.deleted(Path(filename))

    def xRandomness(self, numbytes: int) -> bytes:  # noqa: N802
        return self.random.randbytes(numbytes)


@contextmanager
def simulated_disks() -> Iterator[SimulatedVfs]:
    """Every database opened in here is on a simulated disk, where one has its directory."""
    vfs = SimulatedVfs()
    try:
        yield vfs
    finally:
        vfs.unregister()


class InlineCheckpointer(WalCheckpointer):
    """The checkpointer without its thread and its connection: passes run between two groups, and often."""

    FRAMES = 12

    def __init__(self, writer: apsw.Connection, directory: Path) -> None:
        self._writer = writer
        self._frames = self._copied = 0
        self._next_step = self._next_pass = self._next_restart = self.FRAMES
        writer.set_wal_hook(self._committed)

    def step(self) -> None:
        if self._frames >= self._next_step:
            self._checkpoint(self._writer, apsw.SQLITE_CHECKPOINT_PASSIVE)
            self._next_step = self._frames + self.FRAMES

    def close(self) -> None:
        self._writer.set_wal_hook(None)
