"""The location of a lake: a directory, or the URL of an object store with the options of delta-rs.

All data files are written here, so that a file is durable before a table names it.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler

from unisono.lake.errors import LakeUnusable
from unisono.lake.event_file import EventFile
from unisono.lake.object_store import with_defaults

LOG: Final = "log"
BY_PARTITION: Final = "by_partition"
SNAPSHOTS: Final = "snapshots"
ERASURES: Final = "erasures"

_SCHEME: Final = re.compile(r"[A-Za-z][\w+.-]+:")
_URL: Final = re.compile(r"[A-Za-z][\w+.-]+://[^/]")
_MISREAD: Final = re.compile(r"%[0-9A-Fa-f]{2}|\\|[\x00-\x1f\x7f]")
"""What delta-rs does not take literally in the name of a directory."""


def delta_name(table: str) -> str:
    """The name of a table in its own metadata."""
    return f"unisono {table}"


class Storage(msgspec.Struct, frozen=True):
    """The location of one lake; small and picklable, for executors.

    `attempt`: the id of a job's attempt, which the names of its new files carry.
    """

    location: str
    options: dict[str, str] = {}
    attempt: str = ""

    @classmethod
    def at(cls, location: str, options: Mapping[str, str] | None = None) -> Storage:
        """A directory becomes absolute: executors have other working directories."""
        if not location.strip():
            raise LakeUnusable("the location is empty: name a directory, or s3://… and the like")
        if location.startswith("file:"):
            location = _directory(_path_of(location))
        elif not _URL.match(location):
            if _SCHEME.match(location) or "://" in location:
                raise LakeUnusable(
                    f"{location} is neither a directory nor a URL: write ./{location}, or s3://… and the like"
                )
            location = _directory(location)
        elif "//" in urlsplit(location).path or any(mark in location for mark in "?#"):
            raise LakeUnusable(f"{location} cannot be a lake's URL: no ?, # or empty name may be in its path")
        remote = with_defaults(location, options or {}) if "://" in location else {}
        return cls(location.rstrip("/") or "/", remote)

    @property
    def is_local(self) -> bool:
        return "://" not in self.location

    def table(self, name: str) -> str:
        """The URI of one of the lake's tables."""
        return f"{self.location}/{name}"

    def uri(self, table: str, path: str) -> str:
        """The full name of a data file, as Spark reads it."""
        return f"{self.table(table)}/{path}"

    def new_name(self, first_id: int, last_id: int) -> str:
        """A unique name for a new data file with these ids."""
        return f"{first_id:012d}-{last_id:012d}-{(self.attempt + uuid.uuid4().hex)[:32]}.parquet"

    def write(self, table: str, path: str, content: pa.Buffer) -> None:
        """Store a new data file; in a directory it survives power loss when this returns."""
        if self.is_local:
            _write_durably(Path(self.table(table)) / path, content)
            return
        # Arrow's wrapper of this stream passes its own buffers, which delta-rs does not accept.
        stream = self._handler(table)._handler.open_output_stream(path)
        try:
            stream.write(memoryview(content).tobytes())
        finally:
            stream.close()

    def read(self, table: str, path: str) -> Any:
        """A data file for random access, as a native Arrow file."""
        if self.is_local:
            return pa.OSFile(self.uri(table, path))
        return pa_fs.PyFileSystem(self._handler(table)).open_input_file(path)

    def has_all(self, table: str, paths: Iterable[str]) -> bool:
        """Whether all of these data files exist; an object store is asked for each."""
        if self.is_local:
            return all(Path(self.uri(table, path)).exists() for path in paths)
        system = pa_fs.PyFileSystem(self._handler(table))
        return all(found.type == pa_fs.FileType.File for found in system.get_file_info(list(paths)))

    def require_unused(self, table: str) -> None:
        """Refuse files where a table is to be made: they are somebody else's, and a vacuum would remove them, but for
        those with a name that begins with one of these marks."""
        paths = (path for path in self._paths(table) if not path.startswith(("_", ".")))
        if (found := next(paths, None)) is not None:
            raise LakeUnusable(
                f"{self.table(table)} has files and is no table of ours ({found}): name another place, or move them "
                "away; a vacuum would remove them"
            )

    def _paths(self, table: str) -> Iterator[str]:
        """All files under the name of a table, whoever wrote them, by their paths there."""
        if self.is_local:
            folder = Path(self.table(table))
            return (str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())
        system = pa_fs.PyFileSystem(self._handler(table))
        found = system.get_file_info(pa_fs.FileSelector("", allow_not_found=True, recursive=True))
        return (info.path for info in found if info.type == pa_fs.FileType.File)

    def remove(self, path: str) -> None:
        """Delete a file by its path under the lake, if it exists."""
        if self.is_local:
            (Path(self.location) / path).unlink(missing_ok=True)
        else:
            DeltaStorageHandler(self.location, self.options).delete_file(path)

    def open_parquet(self, source: Any) -> pq.ParquetFile:
        """A Parquet reader that verifies checksums: damage is an error, never wrong rows."""
        return EventFile(source, pre_buffer=not self.is_local, page_checksum_verification=True)

    def sync_commits(self, table: str, after: int) -> None:
        """Make the commits after version `after` of a table in a directory survive power loss; an object store
        guarantees it by itself. They are found by their numbers: the directory may have many thousands.
        """
        if self.is_local:
            folder = Path(self.table(table)) / "_delta_log"
            version = after + 1
            while (commit := folder / f"{version:020d}.json").exists():
                _sync(commit)
                checkpoint = folder / f"{version:020d}.checkpoint.parquet"
                if checkpoint.exists():
                    _sync(checkpoint)
                    _sync(folder / "_last_checkpoint")
                version += 1
            _sync(folder)

    def sync_directories(self, table: str) -> None:
        """Make the directories of a new table survive power loss, with those above it, which may be new as well."""
        if self.is_local:
            folder = Path(self.table(table))
            _sync(folder)
            for path in folder.parents:
                with contextlib.suppress(OSError):  # one that existed before may not be readable
                    _sync(path)

    def _handler(self, table: str) -> Any:
        return DeltaStorageHandler(self.table(table), self.options)


def _path_of(url: str) -> str:
    """The path in a file URL; refused where a part of the URL is not of the path."""
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path or any(mark in url for mark in "?#"):
        raise LakeUnusable(
            f"{url} is no directory's URL: write file:///… with the whole path and no ? or #, or the path alone"
        )
    return unquote(parts.path)


def _directory(path: str) -> str:
    """An absolute path; refused where delta-rs would read it as another one."""
    path = os.path.abspath(path)  # noqa: PTH100
    if _MISREAD.search(path):
        raise LakeUnusable(
            f"{path!r} cannot be a lake's directory: no %XX, backslash or control character may be in its name"
        )
    return path


def _write_durably(path: Path, content: pa.Buffer) -> None:
    _make_durably(path.parent)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        with os.fdopen(descriptor, "wb", buffering=0, closefd=False) as file:
            view = memoryview(content)
            while view:
                view = view[file.write(view) :]
        os.fsync(descriptor)
    except BaseException as error:
        path.unlink(missing_ok=True)  # on a full disk, half a file would take the remaining space
        if isinstance(error, OSError) and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        os.close(descriptor)
    _sync(path.parent)


def _make_durably(folder: Path) -> None:
    """Make a directory and those above it that are missing, each synced into the one above."""
    if not folder.is_dir():
        _make_durably(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
