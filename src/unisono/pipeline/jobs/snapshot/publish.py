"""Publishes the lake's snapshots to the server's store, where they are newer than its own.

The driver streams them: it reads all keys, and the states it needs, with one transaction's worth in memory. After a
kill the store has some of them, each valid by itself; publishing again adds the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from unisono.lake.lake import Lake
from unisono.lake.snapshots import Snapshots, StateRow, files_of
from unisono.lake.storage import SNAPSHOTS
from unisono.pipeline.errors import ModelContentChanged
from unisono.pipeline.job_model import in_force, stored_digest
from unisono.pipeline.jobs.export.job import plan
from unisono.pipeline.jobs.snapshot.job import by_bucket
from unisono.pipeline.maintain.embedded import open_maintainer
from unisono.store.batching import in_batches
from unisono.store.port import Snapshot

PORTION_BYTES: Final = 16 << 20
PORTION_ROWS: Final = 5_000
"""States per call. An embedded log without a server is opened once for each call, and locked for a second at most."""

Progress = Callable[[int], None]
"""Called with the snapshots published so far."""


class PublishResult(msgspec.Struct, frozen=True):
    """The snapshots stored."""

    snapshots: int
    bytes: int
    seconds: float


def publish(lake: Lake, store: str, model_version: int, progress: Progress | None = None) -> PublishResult:
    """Store each partition's newest snapshot, unless the store has one as new."""
    began, count, size = time.monotonic(), 0, 0
    plan(store, lake)  # refuses the lake of another log
    digests = _digests(lake, model_version)
    require_publishable(store, model_version, digests)
    maintainer = open_maintainer(store)
    try:
        # All files of one version have one digest: a snapshot run refuses others.
        marks = maintainer.watermarks(model_version, stored_digest(next(iter(digests), None) or ""))
        newer = _newer(lake, model_version, marks)
        for batch in in_batches(
            newer, lambda row: len(row.state), count_max=PORTION_ROWS, bytes_max=PORTION_BYTES
        ):
            maintainer.put_snapshots([_snapshot(row, model_version) for row in batch])
            count += len(batch)
            size += sum(len(row.state) for row in batch)
            if progress is not None:
                progress(count)
    finally:
        maintainer.close()
    return PublishResult(count, size, time.monotonic() - began)


def require_publishable(store: str, model_version: int, digests: Iterable[str | None]) -> None:
    """Refuse states of an older model than the one in force, or of another content: the server would continue
    from them.
    """
    now = in_force(store)
    if model_version < now.version:
        raise ModelContentChanged(
            f"model version {now.version} is in force: snapshots of version {model_version} are not published"
        )
    others = set(digests) - {now.digest} if model_version == now.version else set()
    if others:
        raise ModelContentChanged(
            f"model version {model_version} has another content (digest {str(others.pop())[:12]}) than the one in "
            f"force ({now.digest[:12]}): its snapshots are not published"
        )


def _digests(lake: Lake, model_version: int) -> set[str | None]:
    table = lake.find(SNAPSHOTS)
    return (
        {file.model_digest for file in files_of(table.files(), model_version)} if table is not None else set()
    )


def _newer(lake: Lake, model_version: int, marks: dict[str, int]) -> Iterator[StateRow]:
    table = lake.find(SNAPSHOTS)
    if table is None:
        return
    head = lake.head()
    for subset, files in by_bucket(table, model_version):
        with Snapshots.opened(lake.storage, files, head) as snapshots:
            for name, ids in snapshots.found(subset):
                if ids[-1] > marks.get(name.decode(), -1):
                    row = snapshots.at(name, ids[-1])
                    row.require_sound()
                    yield row


def _snapshot(row: StateRow, model_version: int) -> Snapshot:
    digest = stored_digest(row.model_digest)
    return Snapshot(row.partition, row.committed_id, model_version, row.state, row.created_at, digest)
