"""Backups of an embedded log beside its running server: a consistent copy, stored by what changed (DUR-08)."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import apsw
import msgspec

from unisono import __version__
from unisono.store.check import check_directory
from unisono.store.port import LogExtent, StorageError, StoreUnusable
from unisono.store.sqlite import files
from unisono.store.sqlite.backup_files import (
    CHUNK_BYTES,
    FORMAT,
    NAME_FORMAT,
    BackupDamaged,
    BackupDirectory,
    BackupManifest,
    ChunkIndex,
    ChunkPlace,
    PackWriter,
)
from unisono.store.sqlite.reader import SqliteReader, unusable
from unisono.vocabulary import LogIdentity

log = logging.getLogger("unisono.store")

Progress = Callable[[str, int, int], None]

STEP_PAGES: Final = 4_096
"""16 MiB between two looks at the progress. All steps read one moment of the log."""

IMAGE: Final = "image"
"""The directory within the target where log.db is copied to before it is cut into chunks."""


class BackupResult(msgspec.Struct, frozen=True):
    """A new backup."""

    name: str
    manifest: BackupManifest
    removed: int
    """Older backups that were removed."""


def back_up(
    data: Path,
    target: Path,
    *,
    keep: int | None = None,
    check: bool = False,
    progress: Progress | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> BackupResult:
    """Add a backup of the log in `data` to those in `target`.

    Raises StoreUnusable where there is no log or the target holds another one's backups, LogInUse while another
    backup writes there, BackupDamaged when what was written reads back otherwise, or, with `check`, is not sound.
    """
    report = progress or (lambda *_: None)
    directory = BackupDirectory(target)
    if target.resolve() == data.resolve():
        raise StoreUnusable(f"{target} is the data directory: back up into another one, on another disk")
    try:
        with directory.locked():
            identity, extent = _of(data)
            _refuse_other_logs(directory, identity)
            moment = now()
            name = _free_name(directory, moment)
            with _image(data, target / IMAGE, report) as image:
                if check:
                    _expect_sound(image, report)
                identity, extent = _of(image)
                manifest, index = _store(directory, name, image, report)
            manifest = msgspec.structs.replace(
                manifest,
                created_at=moment.isoformat(timespec="milliseconds"),
                log_id=identity.log_id,
                log_epoch=identity.log_epoch,
                head=extent.head,
                pruned_to=extent.pruned_to,
                archive=extent.archive,
            )
            directory.add(name, manifest, index)
            removed = directory.keep_newest(keep) if keep else 0
    except OSError as error:
        raise StorageError(f"the backup in {target} failed: {error.strerror or error}") from error
    return BackupResult(name, manifest, removed)


def verify_backups(target: Path, progress: Progress | None = None) -> dict[str, str | None]:
    """Read every backup in `target` as a restore would: for each what is wrong with it, or None."""
    directory = BackupDirectory(target)
    names = directory.names()
    found: dict[str, str | None] = {}
    for number, name in enumerate(names):
        try:
            for _ in _content(directory, name):
                pass
            found[name] = None
        except StorageError as error:
            found[name] = str(error)
        if progress is not None:
            progress("verify", number + 1, len(names))
    return found


def write_log_file(target: Path, name: str | None, path: Path) -> BackupManifest:
    """Put log.db of a backup, by default the newest, to `path`: durable and checked against its digests."""
    directory = BackupDirectory(target)
    names = directory.names()
    if not names:
        raise StoreUnusable(f"{target} has no backups")
    chosen = name or names[-1]
    manifest = directory.manifest(chosen)
    with path.open("xb") as file:
        for chunk in _content(directory, chosen):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return manifest


def _content(directory: BackupDirectory, name: str) -> Iterator[bytes]:
    """log.db of a backup; BackupDamaged at its end when the whole is not what it was."""
    manifest = directory.manifest(name)
    digest, size = hashlib.sha256(), 0
    for chunk in directory.chunks(name, manifest):
        digest.update(chunk)
        size += len(chunk)
        yield chunk
    if (size, digest.hexdigest()) != (manifest.bytes, manifest.sha256):
        raise BackupDamaged(f"the backup {name} as a whole is not what was written: its digest differs")


def _of(data: Path) -> tuple[LogIdentity, LogExtent]:
    with closing(SqliteReader.open(data)) as reader:
        return reader.identity(), reader.extent()


def _refuse_other_logs(directory: BackupDirectory, identity: LogIdentity) -> None:
    for name in directory.names()[-1:]:
        if (held := directory.manifest(name).log_id) != identity.log_id:
            raise StoreUnusable(
                f"{directory.path} holds backups of the log {held}, and this one is {identity.log_id}: "
                "give each log a target of its own"
            )


def _free_name(directory: BackupDirectory, moment: datetime) -> str:
    name = moment.strftime(NAME_FORMAT)
    newest = directory.names()[-1:]
    if newest and newest[0] >= name:
        raise StoreUnusable(
            f"{directory.path} has a backup of {newest[0]}, which is not in the past: set the clock, "
            "or use another target"
        )
    return name


@contextmanager
def _image(data: Path, to: Path, progress: Progress) -> Iterator[Path]:
    """A directory with log.db as it is at one moment. The log is read page by page, in one read transaction."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(mode=0o700)
    try:
        _copy_pages(data, to / files.LOG_FILE, progress)
        yield to
    finally:
        shutil.rmtree(to, ignore_errors=True)


def _copy_pages(data: Path, to: Path, progress: Progress) -> None:
    try:
        with closing(files.connect_reader(data)) as source, closing(apsw.Connection(str(to))) as copy:
            files.refuse_other_versions(source, data)
            copy.pragma("journal_mode", "off")
            copy.pragma("synchronous", "off")
            source.execute("BEGIN")
            source.pragma("user_version")  # begins the read transaction, in which all steps stay
            with copy.backup("main", source, "main") as backup:
                while not backup.done:
                    backup.step(STEP_PAGES)
                    progress("copy", backup.page_count - backup.remaining, backup.page_count)
            source.execute("ROLLBACK")
    except apsw.Error as error:
        raise unusable(data, error) from error


def _expect_sound(image: Path, progress: Progress) -> None:
    report = check_directory(image, lambda done, total: progress("check", done, total))
    if not report.ok:
        raise BackupDamaged(f"the log is not sound, and was not backed up: {report.text()}")


def _store(
    directory: BackupDirectory, name: str, image: Path, progress: Progress
) -> tuple[BackupManifest, bytes]:
    """Put the chunks that no backup has into a pack; the manifest but for what it is of, and the index."""
    path = image / files.LOG_FILE
    size = path.stat().st_size
    packs, known = _known(directory)
    packs.append(name)
    pack = PackWriter(directory.path, name)
    whole = hashlib.sha256()
    digests: list[bytes] = []
    places: list[ChunkPlace] = []
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                whole.update(chunk)
                digest = hashlib.sha256(chunk).digest()
                place = known.get(digest)
                if place is None:
                    place = known[digest] = ChunkPlace(len(packs) - 1, *pack.add(chunk))
                digests.append(digest)
                places.append(place)
                progress("store", len(digests) * CHUNK_BYTES, size)
        pack_sha256 = pack.finish()
    except BaseException:
        pack.abandon()
        raise
    index = msgspec.msgpack.encode(_compacted(ChunkIndex(packs, b"".join(digests), places)))
    manifest = BackupManifest(
        format=FORMAT, made_by=f"unisono {__version__}", created_at="", log_id="", log_epoch=0,
        schema_version=_schema_version(path), head=0, pruned_to=0, archive=None, bytes=size,
        sha256=whole.hexdigest(), chunk_bytes=CHUNK_BYTES, index_sha256=hashlib.sha256(index).hexdigest(),
        pack=None if pack_sha256 is None else f"{name}.pack", pack_bytes=pack.size, pack_sha256=pack_sha256,
    )  # fmt: skip
    return manifest, index


def _known(directory: BackupDirectory) -> tuple[list[str], dict[bytes, ChunkPlace]]:
    """The packs and chunks of the newest backup; none where it is damaged, so that the new one is whole."""
    for name in directory.names()[-1:]:
        try:
            index = directory.index(name, directory.manifest(name))
            directory.expect_packs(index)
        except StorageError as error:
            log.warning(
                "the backup %s is damaged, everything is stored again: %s",
                name,
                error,
                extra={"backup": name, "error": str(error)},
            )
            break
        return list(index.packs), dict(index)
    return [], {}


def _compacted(index: ChunkIndex) -> ChunkIndex:
    """Without the packs that it does not need any more."""
    used = sorted({place.pack for place in index.places})
    number = {pack: new for new, pack in enumerate(used)}
    places = [ChunkPlace(number[place.pack], place.offset, place.size) for place in index.places]
    return ChunkIndex([index.packs[pack] for pack in used], index.digests, places)


def _schema_version(path: Path) -> int:
    """From the file's header (user_version): the image is closed, and opening it once more would change nothing."""
    with path.open("rb") as file:
        file.seek(60)
        return int.from_bytes(file.read(4), "big")
