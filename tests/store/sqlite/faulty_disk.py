"""A disk between SQLite and the real one: it can lose power, and it can fail.

What was written but not synced is lost in part when the power goes, any part of it: each such write reaches
the platter or not, by chance.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import msgspec

Write = tuple[int, bytes]
Fault = Callable[[str, str], None]
"""Called with operation (`write`, `sync`, `truncate`) and file name before it happens; may raise."""


class FileImage(msgspec.Struct):
    """One file: its synced bytes, and the writes since then."""

    synced: bytearray
    pending: list[Write]

    def copy(self) -> FileImage:
        return FileImage(bytearray(self.synced), list(self.pending))

    def settle(self) -> None:
        for write in self.pending:
            _apply(self.synced, write)
        self.pending.clear()

    def after_power_loss(self, chance: random.Random) -> bytes:
        content = bytearray(self.synced)
        for write in self.pending:
            if chance.random() < 0.5:
                _apply(content, write)
        return bytes(content)


def _apply(content: bytearray, write: Write) -> None:
    offset, data = write
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


class FaultyDisk(apsw.VFS):
    """SQLite's default disk while it is registered."""

    def __init__(self) -> None:
        self.files: dict[str, FileImage] = {}
        self.fault: Fault = lambda _operation, _name: None
        self.changing = threading.Lock()
        super().__init__("faulty", "unix", makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _File(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        with self.changing:
            self.files.pop(Path(filename).name, None)

    def image(self) -> dict[str, FileImage]:
        """Everything on the disk now, for a power loss at this moment."""
        with self.changing:
            return {name: file.copy() for name, file in self.files.items()}


class _File(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._disk = disk
        self._name = Path(path or "temporary").name
        self._image = disk.files.setdefault(self._name, FileImage(bytearray(), []))
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._disk.fault("write", self._name)
        super().xWrite(data, offset)
        with self._disk.changing:
            self._image.pending.append((offset, bytes(data)))

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.fault("sync", self._name)
        super().xSync(flags)
        with self._disk.changing:
            self._image.settle()

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._disk.fault("truncate", self._name)
        super().xTruncate(newsize)
        with self._disk.changing:
            self._image.settle()
            del self._image.synced[newsize:]


@contextmanager
def faulty_disk() -> Iterator[FaultyDisk]:
    disk = FaultyDisk()
    try:
        yield disk
    finally:
        disk.unregister()


def restore(image: dict[str, FileImage], directory: Path, chance: random.Random) -> None:
    """What a machine finds after the power came back."""
    directory.mkdir()
    for name, file in image.items():
        (directory / name).write_bytes(file.after_power_loss(chance))
