"""A disk that loses, tears and reorders what was not synced, fails on request, and is full at some size.

SQLite writes through it to real files, so that everything else sees them. What is durable is kept in memory; a power
failure leaves that, plus whatever of the rest happened to reach the disk. `crash` rewrites the files in place;
`image` and `restore` write them to another directory, for a power failure in the middle of a run that goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import apsw

from unisono.store.port import StorageError, StoreUnusable
from unisono.store.sqlite.log import SqliteLog
from unisono.store.sqlite.wal import WalCheckpointer
from unisono.store.sqlite.wal_space import IDLE_S, WalSpace

SECTOR_BYTES = 512
"""A torn write leaves whole sectors of it."""

Fault = Callable[[str, str], None]
"""Called with operation (`write`, `sync`, `truncate`) and file name before it happens; may raise."""


def no_fault(_operation: str, _name: str) -> None:
    """Let every operation succeed."""


class DiskFailed(apsw.IOError):
    """A simulated disk fails, because it was told to."""


class DiskFull(apsw.FullError):
    """A simulated disk is full, because it was told to be."""


def expect_simulated(error: BaseException) -> None:
    """Raise `error` again unless it comes from a simulated fault and from nothing else.

    The log takes any exception for the end of itself, so one that nobody planned would look like a fault.
    """
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(cause)
    known = all(isinstance(each, StorageError | StoreUnusable | apsw.Error) for each in chain)
    if not (known and any(isinstance(each, DiskFailed | DiskFull) for each in chain)):
        raise error


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


class FileImage:
    """One file: its durable bytes, and the writes since its last sync."""

    __slots__ = ("durable", "unsynced")

    def __init__(self, durable: bytes | bytearray, unsynced: list[UnsyncedWrite]) -> None:
        self.durable = bytearray(durable)
        self.unsynced = unsynced

    def copy(self) -> FileImage:
        return FileImage(self.durable, list(self.unsynced))

    def settle(self, random: Random | None = None) -> None:
        """Make the unsynced writes durable; with a random source only the parts that survive a power failure."""
        for write in self.unsynced:
            write.apply(self.durable, random)
        self.unsynced = []


class SimulatedDisk:
    """The files below one directory: one machine."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files: dict[Path, FileImage] = {}
        self.fault: Fault = no_fault
        self.calls = 0
        self.fail_at: int | None = None
        """The call of write or sync that fails, counted from 1."""
        self.full = False
        self.ignoring = False
        """While connections of a dead process are closed."""
        self._changing = threading.Lock()
        """An image is of one moment, although a checkpointer writes in its own thread."""

    def has(self, path: Path) -> bool:
        return path.is_relative_to(self.directory)

    def opened(self, path: Path) -> None:
        if path not in self.files:
            with self._changing:
                self.files[path] = FileImage(path.read_bytes() if path.exists() else b"", [])

    def deleted(self, path: Path) -> None:
        with self._changing:
            self.files.pop(path, None)

    def forget_sync(self, path: Path) -> None:
        """Treat the content of a file as written but not synced, as a killed process may leave it."""
        self.files[path] = FileImage(b"", [UnsyncedWrite(0, path.read_bytes())])

    def write(self, path: Path, offset: int, data: bytes) -> None:
        self._call("write", path)
        if self.full:
            raise DiskFull("the simulated disk is full")
        with self._changing:
            self.files[path].unsynced.append(UnsyncedWrite(offset, data))

    def truncate(self, path: Path, size: int) -> None:
        self._call("truncate", path)
        with self._changing:
            self.files[path].unsynced.append(UnsyncedWrite(size, None))

    def sync(self, path: Path) -> None:
        try:
            self._call("sync", path)
        except Exception:
            with self._changing:
                self.files[
                    path
                ].unsynced = []  # a failed sync loses its writes for good: the kernel forgets them
            raise
        with self._changing:
            self.files[path].settle()

    def _call(self, operation: str, path: Path) -> None:
        self.calls += 1
        self.fault(operation, path.name)
        if self.fail_at is not None and self.calls >= self.fail_at:
            raise DiskFailed(f"the simulated disk fails at its {operation}")

    def image(self) -> dict[str, FileImage]:
        """Everything on the disk now by file name, for a power failure at this moment."""
        with self._changing:
            return {path.name: file.copy() for path, file in self.files.items()}

    def crash(self, close: Callable[[], None], random: Random | None) -> None:
        """The machine's processes are gone; what their connections do while they are closed never happened.

        Without a random source only the processes died, and the kernel has everything. With one the power failed:
        every file is what was synced, and parts of what was not, in any combination.
        """
        if random is None:
            contents = {path: path.read_bytes() for path in self.files if path.exists()}
        else:
            for file in self.files.values():
                file.settle(random)
            contents = {path: bytes(file.durable) for path, file in self.files.items()}
        self.ignoring = True
        close()
        self.ignoring = False
        self.repair()
        for path, content in contents.items():
            path.write_bytes(content)

    def repair(self) -> None:
        self.fault, self.fail_at, self.full, self.calls = no_fault, None, False, 0


def restore(image: dict[str, FileImage], directory: Path, random: Random) -> None:
    """Write what a machine finds after the power came back."""
    directory.mkdir()
    for name, file in image.items():
        left = file.copy()
        left.settle(random)
        (directory / name).write_bytes(left.durable)


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
        self._disk.truncate(self._path, newsize)
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


@contextmanager
def simulated_disk(directory: Path) -> Iterator[SimulatedDisk]:
    """Every database opened below the directory is on this one disk."""
    with simulated_disks() as vfs:
        disk = SimulatedDisk(directory)
        vfs.disks.append(disk)
        yield disk


class InlineCheckpointer(WalCheckpointer):
    """The checkpointer without its thread and its connection: passes run between two groups, and often.

    There is room for more than a round of the WAL, so that commits happen within it and behind it.
    """

    FRAMES = 12
    ROOM_BYTES = 40 * 4120

    def __init__(self, writer: apsw.Connection, directory: Path) -> None:
        self._writer = writer
        self._space = WalSpace(writer, self.ROOM_BYTES, 0)
        self._seconds = 0.0
        self._frames = self._copied = 0
        self._next_step = self._next_pass = self._next_restart = self.FRAMES
        writer.set_wal_hook(self._committed)

    def step(self) -> None:
        if self._frames >= self._next_step:
            self._checkpoint(self._writer, apsw.SQLITE_CHECKPOINT_PASSIVE)
            self._next_step = self._frames + self.FRAMES

    def now(self) -> float:
        """A clock that goes on each time it is asked: with the real one no run would be like the one before."""
        self._seconds += IDLE_S / 2
        return self._seconds

    def close(self) -> None:
        self._space.close()
        self._writer.set_wal_hook(None)


def abandon(log: SqliteLog) -> None:
    """Close what a dead process had open."""
    with suppress(apsw.Error):  # in the middle of a transaction, or on a disk that fails
        log.close()
    with suppress(apsw.Error):
        log._connection.close(force=True)
    log._lock.release()
