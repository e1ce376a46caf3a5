"""Lists every file of a lake, named by its tables or not, and of a directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake.fs import DeltaStorageHandler

from unisono.lake.storage import BY_PARTITION, LOG, SNAPSHOTS, Storage

_DELTA_LOG: Final = "_delta_log"


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
    for folder, _, names in os.walk(directory):
        for name in sorted(names):
            path = Path(folder) / name
            try:
                if path.is_file():
                    yield path.relative_to(directory).as_posix(), path.stat().st_size
            except FileNotFoundError:
                continue


def remove(place: SearchedFile) -> None:
    """Delete a file of a lake, if it still exists."""
    assert place.storage is not None
    place.storage.remove(place.path)
