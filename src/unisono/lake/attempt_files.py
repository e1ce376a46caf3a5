"""What one attempt of a job writes: files whose names tell the attempt, so that those of a failed one can go.

They go in a directory, where the table itself tells whether a commit succeeded and so names them. In an object store
a commit whose answer was lost may have succeeded, or still succeed; there a vacuum removes them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from unisono.lake.errors import LakeError
from unisono.lake.storage import BY_PARTITION, ERASURES, LOG, SNAPSHOTS, Storage
from unisono.lake.table import Table

_TABLES = (LOG, BY_PARTITION, SNAPSHOTS, ERASURES)


@contextmanager
def attempting(storage: Storage) -> Iterator[Storage]:
    """The storage for all tasks of one attempt. When it fails, what it wrote and no table names is removed.

    A task that is still running then can write one more file, which is left to a vacuum.
    """
    own = msgspec.structs.replace(storage, attempt=uuid.uuid4().hex[:8])
    try:
        yield own
    except BaseException:
        if storage.is_local:
            with suppress(LakeError, OSError):  # the failure itself is what must be told
                _remove_unnamed(own)
        raise


def _remove_unnamed(storage: Storage) -> None:
    for name in _TABLES:
        written = [
            path
            for path in Path(storage.table(name)).rglob(f"*-{storage.attempt}*.parquet")
            if "_delta_log" not in path.parts
        ]
        if written:
            table = Table.open(storage, name)
            named = set() if table is None else {file.path for file in table.named()}
            for path in written:
                if path.relative_to(storage.table(name)).as_posix() not in named:
                    path.unlink(missing_ok=True)
