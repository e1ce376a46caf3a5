"""Files to import that are in an object store, named by URL: found and read through delta-rs, as a lake is."""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import partial
from pathlib import PurePosixPath
from typing import IO, Any, Final
from urllib.parse import urlsplit

import msgspec
import pyarrow.fs as pa_fs
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler

from unisono.lake.errors import one_line
from unisono.lake.object_store import with_defaults
from unisono.pipeline.errors import PipelineError
from unisono.pipeline.jobs.import_ import delta_files

SCHEMES: Final = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")

READ_BYTES: Final = 4 << 20
"""Of one request, for files that are read from the beginning to the end."""


class RemoteFile(msgspec.Struct, frozen=True):
    """A file, with what shows whether it changed."""

    url: str
    bytes: int
    modified_ns: int


def is_remote(path: str) -> bool:
    """Whether a path is a URL; PipelineError for one of an unknown kind."""
    scheme, separator, _ = path.partition("://")
    if not separator or "/" in scheme:
        return False
    if scheme.lower() not in SCHEMES:
        raise PipelineError(
            f"{path} cannot be imported: URLs begin with s3://, gs://, az:// or abfss://; a path otherwise"
        )
    return True


def store_options(url: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options for the store of a URL: with bounds on trying again, and the keys of an AWS profile."""
    return with_defaults(url, options)


def found(url: str, options: dict[str, str]) -> RemoteFile | None:
    """The file at a URL; None where there is none."""
    store, key = _store(url, options)
    info = _asked(url, lambda: store.get_file_info(key))
    return _file(url, info) if info.type == pa_fs.FileType.File else None


def require_whole(url: str, options: dict[str, str]) -> None:
    """Refuse a part of a Delta table, where the store lets see what is above."""
    store, key = _store(url, options)
    for above in PurePosixPath(key).parents if key else ():
        log = pa_fs.FileSelector(str(above / delta_files.LOG), allow_not_found=True)
        try:
            inside = bool(store.get_file_info(log))
        except (DeltaError, OSError):
            return  # who may read a folder need not be allowed to look above it
        if inside:
            bucket = url.rstrip("/").removesuffix(key).rstrip("/")
            raise delta_files.part_of_table(url, f"{bucket}/{above}".removesuffix("/."))


def files_below(url: str, options: dict[str, str]) -> list[RemoteFile]:
    """All files below a URL that are not hidden, by name; of a Delta table, also of one below, its current files."""
    url = url.rstrip("/")
    store, key = _store(url, options)
    selector = pa_fs.FileSelector(key, allow_not_found=True, recursive=True)
    infos = _asked(url, lambda: store.get_file_info(selector))
    names = {info.path.removeprefix(key).lstrip("/"): info for info in infos}
    inside = f"/{delta_files.LOG}/"
    tables = {f"{f'/{name}'.partition(inside)[0]}/"[1:] for name in names if inside in f"/{name}"}
    found = [
        _file(f"{url}/{name}", info)
        for name, info in names.items()
        if info.type == pa_fs.FileType.File and not _hidden(name) and not any(map(name.startswith, tables))
    ]
    for table in sorted(tables):
        if not _hidden(table):
            place = f"{url}/{table}".rstrip("/")
            current = _asked(place, partial(delta_files.current_files, place, options))
            found += [_required(each, options) for each in current]
    return sorted(found, key=lambda file: file.url)


def _hidden(name: str) -> bool:
    return any(part.startswith(("_", ".")) for part in name.split("/"))


def open_native(url: str, options: dict[str, str]) -> Any:
    """A file for random access, as Arrow reads Parquet."""
    store, key = _store(url, options)
    return store.open_input_file(key)


def open_bytes(url: str, options: dict[str, str]) -> IO[bytes]:
    """A file that is read by lines."""
    return io.BufferedReader(open_native(url, options), READ_BYTES)


def _required(url: str, options: dict[str, str]) -> RemoteFile:
    file = found(url, options)
    if file is None:
        raise PipelineError(f"{url} is gone")
    return file


def _file(url: str, info: Any) -> RemoteFile:
    return RemoteFile(url, info.size, info.mtime_ns)


def _store(url: str, options: dict[str, str]) -> tuple[Any, str]:
    """The bucket or container as a file system, and the path in it."""
    parts = urlsplit(url)
    path = url.removeprefix(f"{parts.scheme}://{parts.netloc}").strip("/")
    if not parts.netloc:
        raise PipelineError(f"{url} names no bucket")
    handler = _asked(url, lambda: DeltaStorageHandler(f"{parts.scheme}://{parts.netloc}", options))
    return pa_fs.PyFileSystem(handler), path


def _asked(url: str, ask: Any) -> Any:
    try:
        return ask()
    except (DeltaError, OSError, ValueError) as error:
        raise PipelineError(f"{url} cannot be read: {one_line(error)}") from error
