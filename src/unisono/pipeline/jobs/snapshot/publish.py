"""Publishes the lake's snapshots to the server's store, where they are newer than its own.

The driver streams them: it reads all keys, asks the store for its own snapshots of some thousand partitions at a
time, and reads the states it needs. The next portion is read while one is stored. So memory depends neither on the
snapshots nor on the partitions. After a kill the store has some of them, each valid by itself; publishing again adds
the others.

A process that publishes again and again passes what it published last: then only files that are new since are read,
and without any, neither the store's snapshots nor the lake's are looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Final

import msgspec
import numpy as np

from unisono.lake.lake import Lake
from unisono.lake.newest_snapshots import newest_snapshots
from unisono.lake.snapshots import StateRow, files_of
from unisono.lake.storage import SNAPSHOTS
from unisono.lake.table import Table
from unisono.pipeline.errors import ModelContentChanged
from unisono.pipeline.job_model import in_force, stored_digest
from unisono.pipeline.jobs.export.job import plan
from unisono.pipeline.jobs.snapshot.job import by_bucket
from unisono.pipeline.maintain.embedded import open_maintainer
from unisono.pipeline.open_log import open_reader
from unisono.store.batching import in_batches
from unisono.store.port import LogReader, Snapshot
from unisono.vocabulary import LogIdentity

PORTION_BYTES: Final = 16 << 20
PORTION_ROWS: Final = 5_000
"""States per call, two of which are in memory. An embedded log without a server is opened once for each call, and
locked for a second at most."""

_NONE: Final = (-1, 0)
"""Of a partition without a snapshot."""

Progress = Callable[[int], None]
"""Called with the snapshots published so far."""


class PublishedFiles(msgspec.Struct, frozen=True):
    """Files of the lake whose snapshots the store has: of one model, in one log, since the last erasure in it."""

    model_version: int
    model_digest: str
    log: LogIdentity
    erasures: int
    files: frozenset[str]

    def still_in(self, now: PublishedFiles) -> frozenset[str]:
        """Those that need not be read again; none when the model or the log changed, or something was erased."""
        same = msgspec.structs.replace(now, files=self.files) == self
        return self.files if same else frozenset()


class PublishResult(msgspec.Struct, frozen=True):
    """The snapshots stored."""

    snapshots: int
    bytes: int
    seconds: float
    published: PublishedFiles


def publish(
    lake: Lake,
    store: str,
    model_version: int,
    progress: Progress | None = None,
    before: PublishedFiles | None = None,
) -> PublishResult:
    """Store each partition's newest snapshot, unless the store has one as new.

    `before`: what an earlier call of this process published.
    """
    began, count, size = time.monotonic(), 0, 0
    plan(store, lake)  # refuses the lake of another log
    table = lake.find(SNAPSHOTS)
    files = [] if table is None else files_of(table.files(), model_version)
    digests = {file.model_digest for file in files}
    require_publishable(store, model_version, digests)
    # All files of one version have one digest: a snapshot run refuses others.
    digest = stored_digest(next(iter(digests), None) or "")
    maintainer = open_maintainer(store)
    try:
        now = PublishedFiles(
            model_version,
            digest,
            _identity(store),
            maintainer.erasures(),
            frozenset(file.path for file in files),
        )
        known = frozenset() if before is None else before.still_in(now)
        if now.files <= known:
            return PublishResult(0, 0, time.monotonic() - began, now)
        assert table is not None
        with closing(open_reader(store)) as reader:
            newer = _newer(lake, table, now, known, reader)
            for batch in _read_ahead(
                in_batches(newer, lambda s: len(s.state), count_max=PORTION_ROWS, bytes_max=PORTION_BYTES)
            ):
                maintainer.put_snapshots(batch)
                count += len(batch)
                size += sum(len(each.state) for each in batch)
                if progress is not None:
                    progress(count)
    finally:
        maintainer.close()
    return PublishResult(count, size, time.monotonic() - began, now)


def _identity(store: str) -> LogIdentity:
    with closing(open_reader(store)) as reader:
        return reader.identity()


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


def _newer(
    lake: Lake, table: Table, now: PublishedFiles, known: frozenset[str], reader: LogReader
) -> Iterator[Snapshot]:
    """The newest snapshots in files that are not known, where the store's are older."""
    head = lake.head()

    def newer_than_stored(names: list[str], ids: Any) -> Any:
        stored = reader.snapshot_sizes(names, now.model_version, now.model_digest)
        return ids > np.array([stored.get(name, _NONE)[0] for name in names], np.int64)

    for subset, files in by_bucket(table, now.model_version):
        fresh = [file for file in files if file.path not in known]
        for row in newest_snapshots(lake.storage, fresh, subset, head, newer_than_stored):
            yield _snapshot(row, now.model_version)


def _read_ahead(portions: Iterator[list[Snapshot]]) -> Iterator[list[Snapshot]]:
    """The next portion is read by a thread of its own while one is used."""
    with ThreadPoolExecutor(1, "publish") as pool:
        coming = pool.submit(next, portions, None)
        while (portion := coming.result()) is not None:
            coming = pool.submit(next, portions, None)
            yield portion


def _snapshot(row: StateRow, model_version: int) -> Snapshot:
    digest = stored_digest(row.model_digest)
    return Snapshot(row.partition, row.committed_id, model_version, row.state, row.created_at, digest)
