"""Removing the files of a failed job: their names carry the attempt that wrote them.

In a directory the table itself says whether a commit succeeded. In an object store a commit whose answer was lost may
have succeeded, or still succeed, so files stay there until a vacuum removes them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from deltalake.exceptions import DeltaError

from unisono.lake.errors import LakeError
from unisono.lake.storage import BY_PARTITION, ERASURES, LOG, SNAPSHOTS, Storage
from unisono.lake.table import Table
from unisono.lake.write import DataFile

_TABLES = (LOG, BY_PARTITION, SNAPSHOTS, ERASURES)


@contextmanager
def job_attempt(storage: Storage) -> Iterator[Storage]:
    """The storage for all tasks of one attempt. When the attempt fails, its files that no table names are removed.

    A task that is still running then can write one more file, which a vacuum removes.
    """
    own = msgspec.structs.replace(storage, attempt=uuid.uuid4().hex[:8])
    try:
        yield own
    except BaseException:
        if storage.is_local:
            with suppress(LakeError, OSError):  # the failure itself is what the caller must see
                _remove_uncommitted(own)
        raise


@contextmanager
def removed_unless_committed(storage: Storage, files: Sequence[DataFile]) -> Iterator[None]:
    """Remove new files at once when the commit that should name them fails.

    They take room, and may hold text that was erased after it was read. They stay where an object store may have
    taken a commit whose answer was lost.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, OSError | DeltaError) and not storage.is_local:
            raise
        for name in {file.table for file in files}:
            paths = {file.path for file in files if file.table == name}
            for path in paths - _committed(storage, name):
                storage.remove(f"{name}/{path}")
        raise


def _remove_uncommitted(storage: Storage) -> None:
    for name in _TABLES:
        written = [
            path
            for path in Path(storage.table(name)).rglob(f"*-{storage.attempt}*.parquet")
            if "_delta_log" not in path.parts
        ]
        if written:
            committed = _committed(storage, name)
            for path in written:
                if path.relative_to(storage.table(name)).as_posix() not in committed:
                    path.unlink(missing_ok=True)


def _committed(storage: Storage, name: str) -> set[str]:
    """The paths of the files that a table names."""
    table = Table.open(storage, name)
    return set() if table is None else {file.path for file in table.listed_files()}
