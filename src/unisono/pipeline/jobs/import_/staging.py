"""The working directory of an import: a killed import continues, and no stage is done twice.

    DIR/lock                    locked while an import runs here
    DIR/rejects                 the table of rejected rows, unless it is elsewhere
    DIR/IMPORT/manifest.json    the import, and how far it is
    DIR/IMPORT/rows …           Parquet of each stage

IMPORT is a digest of everything that decides the result: the files and their modification times, the options, the
model and the store. A stage is done when the manifest says so; files of a killed stage are removed and made again.
While reading, each split has a summary, written last.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from unisono.pipeline.errors import PipelineError
from unisono.pipeline.jobs.import_.sources import SourceFile
from unisono.store.sqlite.files import sync_directory

LAYOUT: Final = 5
"""Version of the staged files; another version is another import."""

READ, DECIDED = "read", "decided"
"""Stages that are done: all rows read; all rows decided, and the accepted ones sorted."""


class ImportRequest(msgspec.Struct, frozen=True):
    """Identifies an import: the same request uses the same directory."""

    store: str
    sources: tuple[SourceFile, ...]
    mapped: dict[str, str]
    order: str
    full: bool
    model: str
    client_id: str
    layout: int = LAYOUT

    @property
    def key(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


class ImportProgress(msgspec.Struct):
    """How far an import is. `began_ms` is its time, for rows that have none; `base` the log's head when judged, and
    `log` which one it was (empty where there was none), or into which rows are loaded; `rejects` the table that has
    the rejected rows.
    """

    key: str
    began_ms: int
    stage: str = ""
    base: int = 0
    log: str = ""
    accepted: int = 0
    first_ms: int = 0
    rejects: str = ""
    files: list[tuple[str, int]] = []
    summary: msgspec.Raw = msgspec.Raw(b"null")


class Staging:
    """The directory of one import."""

    def __init__(self, root: Path, key: str) -> None:
        self.root = root
        self.folder = root / key
        self._key = key

    def path(self, name: str) -> Path:
        return self.folder / name

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One import at a time: two of the same would write the same files."""
        self.root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise PipelineError(
                f"another import runs in {self.root}: wait for it, or use another directory with --staging"
            ) from None
        finally:
            os.close(descriptor)

    def manifest(self, now_ms: int) -> ImportProgress:
        """The manifest of an earlier run, or a new one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            found = msgspec.json.decode(self.path("manifest.json").read_bytes(), type=ImportProgress)
        except FileNotFoundError:
            found = ImportProgress(self._key, now_ms)
            self.keep(found)
        except msgspec.DecodeError as error:
            raise PipelineError(f"{self.path('manifest.json')} is damaged ({error}): remove it") from error
        return found

    def keep(self, manifest: ImportProgress) -> None:
        write_whole(self.path("manifest.json"), msgspec.json.encode(manifest))

    def loaded(self) -> int:
        """The number of first rows that are certainly in the log; there may be more."""
        try:
            return msgspec.json.decode(self.path("loaded.json").read_bytes(), type=int)
        except (FileNotFoundError, msgspec.DecodeError):
            return 0

    def keep_loaded(self, rows: int) -> None:
        write_whole(self.path("loaded.json"), b"%d" % rows)

    def clear(self, *names: str) -> None:
        for name in names:
            path = self.path(name)
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically and durably."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_directory(path.parent)
