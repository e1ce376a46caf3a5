"""Lists every file of a lake, named by its tables or not, and of a directory."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake.fs import DeltaStorageHandler

from unisono.lake.errors import LakeUnusable
from unisono.lake.storage import BY_PARTITION, LOG, SNAPSHOTS, Storage
from unisono.store.sqlite.files import LOG_FILE

STILL_S: Final = 60.0
"""Files are written at once, from memory: one that nobody has written to for so long is not going to be complete."""

POLL_S: Final = 0.5

_DELTA_LOG: Final = "_delta_log"
_OWN_NAME: Final = re.compile(r"(?:.*/)?(\d{12,})-(\d{12,})-[0-9a-f]{32}\.parquet")

Read = TypeVar("Read")


class UnreadableFile(Exception):
    """A file of Parquet that is damaged, or that a killed job has left half written."""


class SearchedFile(msgspec.Struct, frozen=True):
    """One file: its path under a lake, or its absolute path outside of one."""

    path: str
    bytes: int
    storage: Storage | None = None

    @property
    def is_parquet(self) -> bool:
        return self.path.endswith(".parquet")

    @property
    def holds_events(self) -> bool:
        """Whether it is a data file of one of the lake's tables of events."""
        return self._is_data_of(LOG, BY_PARTITION)

    @property
    def holds_states(self) -> bool:
        """Whether it is a data file of the lake's table of snapshots."""
        return self._is_data_of(SNAPSHOTS)

    def _is_data_of(self, *tables: str) -> bool:
        top, _, rest = self.path.partition("/")
        return (
            self.storage is not None and top in tables and self.is_parquet and not rest.startswith(_DELTA_LOG)
        )

    @property
    def ids(self) -> tuple[int, int] | None:
        """The first and last committed id in a file that this program wrote, by its name; None for other files."""
        name = _OWN_NAME.fullmatch(self.path)
        return None if name is None or self.storage is None else (int(name[1]), int(name[2]))

    @property
    def may_be_cut(self) -> bool:
        """Whether a job of this program that was killed may have left it half written."""
        return self.ids is not None and self._is_local

    @property
    def is_of_log(self) -> bool:
        """Whether it is one of an embedded log's own files."""
        return self.storage is None and Path(self.path).name.startswith(LOG_FILE)

    @property
    def _is_local(self) -> bool:
        return self.storage is None or self.storage.is_local

    def read(self, read: Callable[[Any], Read]) -> Read:
        """What `read` makes of the open file. One that cannot be read is tried again while somebody writes it."""
        until = time.monotonic() + 2 * STILL_S
        while True:
            try:
                with self.opened() as source:
                    return read(source)
            except (pa.ArrowInvalid, OSError) as error:
                if isinstance(error, OSError) and (error.errno is not None or not self._is_local):
                    raise  # it is gone, or the disk or the store is at fault
                if not self._is_being_written() or time.monotonic() > until:
                    raise UnreadableFile(f"{self.location}: {error}") from error
            time.sleep(POLL_S)

    def _is_being_written(self) -> bool:
        """Whether it may be; an object store shows complete files only."""
        return self._is_local and time.time() - Path(self.location).stat().st_mtime < STILL_S

    def opened(self) -> Any:
        """The file, open for reading as an Arrow native file."""
        if self.storage is None:
            return pa.OSFile(self.path)
        top, _, rest = self.path.partition("/")
        return self.storage.read(top, rest) if rest else self.storage.read(".", top)

    @property
    def location(self) -> str:
        return self.path if self.storage is None else f"{self.storage.location}/{self.path}"


def lake_files(storage: Storage) -> list[SearchedFile]:
    """All files under a lake's location, named by its tables or not."""
    if storage.is_local:
        return [SearchedFile(path, size, storage) for path, size in _walk(Path(storage.location))]
    files = pa_fs.PyFileSystem(DeltaStorageHandler(storage.location, storage.options))
    found = files.get_file_info(pa_fs.FileSelector("", recursive=True))
    return [SearchedFile(info.path, info.size, storage) for info in found if info.is_file]


def directory_files(directory: Path, beside: Storage | None = None) -> list[SearchedFile]:
    """All files in a directory, except those of a lake in it."""
    lake = None if beside is None or not beside.is_local else Path(beside.location).resolve()
    found = ((directory / path, size) for path, size in _walk(directory))
    return [
        SearchedFile(str(path), size)
        for path, size in found
        if lake is None or not path.resolve().is_relative_to(lake)
    ]


def _walk(directory: Path) -> Iterator[tuple[str, int]]:
    for folder, _, names in os.walk(directory, onerror=_require_gone):
        for name in sorted(names):
            path = Path(folder) / name
            try:
                if path.is_file():
                    yield path.relative_to(directory).as_posix(), path.stat().st_size
            except FileNotFoundError:
                continue


def _require_gone(error: OSError) -> None:
    """What cannot be listed cannot be searched."""
    if not isinstance(error, FileNotFoundError):
        raise LakeUnusable(
            f"{error.filename} cannot be searched ({error.strerror}): make it readable or remove it, "
            "and run this again"
        ) from error


def remove(place: SearchedFile) -> None:
    """Delete a file of a lake, if it still exists."""
    assert place.storage is not None
    place.storage.remove(place.path)
