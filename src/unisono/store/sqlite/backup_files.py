"""The directory that holds the backups of one embedded log.

    NAME.json    what a backup is of: the log, its head, sizes, digests; written last, so that it means a whole one
    NAME.index   for each chunk of log.db its digest, and the pack that has it
    NAME.pack    the chunks that this backup added, compressed; later backups refer to them
    lock         flock of the command that writes here

NAME is the moment the backup began, so that names sort by time. A chunk is found by its digest: what did not change
since the backup before is not stored again. Files never change once they have their name, which suits tools that
mirror a directory to another place.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from unisono.store.port import LogInUse, StorageError, StoreUnusable
from unisono.store.sqlite.files import LOCK_FILE, prepare_directory, sync_directory

FORMAT: Final = 1
CHUNK_BYTES: Final = 64 << 10
"""Sixteen pages. Index pages change all over the file; smaller chunks store less of their neighbours again, and cost
more in the index."""

NAME_FORMAT: Final = "%Y%m%dT%H%M%S.%fZ"
NAME: Final = re.compile(r"\d{8}T\d{6}\.\d{6}Z")
"""A data directory has files that end in .json as well."""

DIGEST_BYTES: Final = 32
_LEVEL: Final = 1
"""Of zlib: events are text, and the first level has most of what there is to gain."""

_CLEARED: Final = ".unfinished"


class BackupDamaged(StorageError):
    """A backup is not what was written: a file is missing, or its content has another digest."""


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """NAME.json."""

    format: int
    made_by: str
    created_at: str
    log_id: str
    log_epoch: int
    schema_version: int
    head: int
    pruned_to: int
    archive: str | None
    """The lake with the events up to `pruned_to`, which are not in the backup."""
    bytes: int
    sha256: str
    """Of log.db as a whole."""
    chunk_bytes: int
    index_sha256: str
    pack: str | None
    pack_bytes: int
    pack_sha256: str | None


class ChunkPlace(msgspec.Struct, frozen=True, array_like=True):
    """Where a chunk is: the pack's number in `ChunkIndex.packs`, its offset, and its compressed size."""

    pack: int
    offset: int
    size: int


class ChunkIndex(msgspec.Struct, frozen=True):
    """NAME.index: the chunks of log.db in order."""

    packs: list[str]
    digests: bytes
    places: list[ChunkPlace]

    def __iter__(self) -> Iterator[tuple[bytes, ChunkPlace]]:
        for number, place in enumerate(self.places):
            yield self.digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES], place


class BackupDirectory:
    """Reads and lists backups, and adds one under the directory's lock."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """The backups, the oldest first."""
        return sorted(file.stem for file in self.path.glob("*.json") if NAME.fullmatch(file.stem))

    def manifest(self, name: str) -> BackupManifest:
        try:
            found = msgspec.json.decode(self._file(name, "json").read_bytes(), type=BackupManifest)
        except FileNotFoundError:
            there = ", ".join(self.names()[-5:]) or "none"
            raise StoreUnusable(f"{self.path} has no backup {name}; there are: {there}") from None
        except msgspec.MsgspecError as error:
            raise BackupDamaged(f"{self._file(name, 'json')} is no manifest: {error}") from None
        if found.format > FORMAT:
            raise StoreUnusable(
                f"the backup {name} was made by a newer Unisono ({found.made_by}); use that one"
            )
        return found

    def index(self, name: str, manifest: BackupManifest) -> ChunkIndex:
        path = self._file(name, "index")
        try:
            content = path.read_bytes()
        except OSError as error:
            raise BackupDamaged(f"{path} cannot be read: {error.strerror}") from None
        if hashlib.sha256(content).hexdigest() != manifest.index_sha256:
            raise BackupDamaged(f"{path} is not what was written: its digest differs")
        return msgspec.msgpack.decode(content, type=ChunkIndex)

    def chunks(self, name: str, manifest: BackupManifest) -> Iterator[bytes]:
        """The content of log.db in order, every chunk checked against its digest."""
        index = self.index(name, manifest)
        opened: dict[int, BinaryIO] = {}
        try:
            for digest, place in index:
                file = opened.get(place.pack)
                if file is None:
                    file = opened[place.pack] = self._open_pack(index.packs[place.pack])
                yield self._chunk(file, index.packs[place.pack], place, digest)
        finally:
            for file in opened.values():
                file.close()

    def expect_packs(self, index: ChunkIndex) -> None:
        """The packs are there, and as long as they must be; BackupDamaged otherwise."""
        ends = dict.fromkeys(range(len(index.packs)), 0)
        for place in index.places:
            ends[place.pack] = max(ends[place.pack], place.offset + place.size)
        for pack, end in ends.items():
            with self._open_pack(index.packs[pack]) as file:
                if os.fstat(file.fileno()).st_size < end:
                    raise BackupDamaged(f"{file.name} is shorter than it was written")

    def _open_pack(self, name: str) -> BinaryIO:
        path = self._file(name, "pack")
        try:
            return path.open("rb")
        except OSError as error:
            raise BackupDamaged(f"{path} cannot be read: {error.strerror}") from None

    def _chunk(self, file: BinaryIO, pack: str, place: ChunkPlace, digest: bytes) -> bytes:
        where = f"{self._file(pack, 'pack')} at {place.offset}"
        try:
            file.seek(place.offset)
            chunk = zlib.decompress(file.read(place.size))
        except (OSError, zlib.error) as error:
            raise BackupDamaged(f"{where} cannot be read: {error}") from None
        if hashlib.sha256(chunk).digest() != digest:
            raise BackupDamaged(f"{where} is not what was written: its digest differs")
        return chunk

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The right to write here. What an interrupted backup left is removed."""
        prepare_directory(self.path)
        descriptor = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LogInUse(f"another backup is writing to {self.path}") from None
            self._remove_unfinished()
            yield
        finally:
            os.close(descriptor)

    def add(self, name: str, manifest: BackupManifest, index: bytes) -> None:
        """Give a backup its name; its pack is there already."""
        self._write(self._file(name, "index"), index)
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
        self._write(self._file(name, "json"), text + b"\n")

    def keep_newest(self, count: int) -> int:
        """Remove all backups but the newest, and packs that no remaining one refers to; how many were removed."""
        *old, _ = [*self.names()[:-count], ""]
        for name in old:
            self._file(name, "json").unlink()
        sync_directory(self.path)
        self._remove_unfinished()
        return len(old)

    def total_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.path.iterdir() if file.is_file())

    def _remove_unfinished(self) -> None:
        """Files without a manifest that needs them. Where one cannot be read, all packs stay."""
        names = self.names()
        needed = {file for name in names for file in (f"{name}.json", f"{name}.index")}
        try:
            packs = {pack for name in names for pack in self.index(name, self.manifest(name)).packs}
            needed |= {f"{pack}.pack" for pack in packs}
        except StorageError:
            needed |= {file.name for file in self.path.glob("*.pack")}
        for file in self.path.iterdir():
            if file.name in needed or file.name == LOCK_FILE:
                continue
            if file.suffix in (".index", ".pack", _CLEARED):
                file.unlink()

    def _write(self, path: Path, content: bytes) -> None:
        fresh = path.with_name(path.name + _CLEARED)
        with open_private(fresh) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        sync_directory(self.path)

    def _file(self, name: str, suffix: str) -> Path:
        return self.path / f"{name}.{suffix}"


class PackWriter:
    """NAME.pack while it is made. A pack without a chunk is not kept."""

    def __init__(self, directory: Path, name: str) -> None:
        self._path = directory / f"{name}.pack"
        self._fresh = self._path.with_name(self._path.name + _CLEARED)
        self._file = open_private(self._fresh)
        self._digest = hashlib.sha256()
        self.size = 0

    def add(self, chunk: bytes) -> tuple[int, int]:
        """Offset and compressed size of the chunk."""
        packed = zlib.compress(chunk, _LEVEL)
        self._file.write(packed)
        self._digest.update(packed)
        offset, self.size = self.size, self.size + len(packed)
        return offset, len(packed)

    def finish(self) -> str | None:
        """Make it durable, read it back from the file, and give it its name; its digest, None without a chunk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if not self.size:
            self._fresh.unlink()
            return None
        with self._fresh.open("rb") as file:
            read = hashlib.file_digest(file, "sha256").hexdigest()
        if read != self._digest.hexdigest():
            raise BackupDamaged(f"{self._fresh} reads back otherwise than it was written: is the disk sound?")
        self._fresh.replace(self._path)
        sync_directory(self._path.parent)
        return read

    def abandon(self) -> None:
        self._file.close()
        self._fresh.unlink(missing_ok=True)


def open_private(path: Path) -> BinaryIO:
    """A new file that only its owner may read: it holds what people wrote."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    return os.fdopen(descriptor, "wb")
