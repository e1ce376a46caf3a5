"""The maintainer of a shared log: it works over the owner's connection while nodes run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Final, TypeVar

from unisono.pipeline.maintain.embedded import MaintenanceFailed, model_key, tombstone_batches
from unisono.store.cluster import ModelBundle
from unisono.store.maintenance import (
    MaintenanceRefused,
    require_publishable,
    require_unerased,
)
from unisono.store.port import LogExtent, Snapshot, StorageError, StoreUnusable
from unisono.store.postgres import snapshots as postgres_snapshots
from unisono.store.postgres.maintenance import PostgresMaintenance
from unisono.store.postgres.open_pipeline import open_pipeline
from unisono.store.postgres.reader import PostgresReader
from unisono.store.postgres.timeouts import Timeouts

SNAPSHOTS_PER_STATEMENT: Final = 1_000
"""Snapshots stored by one statement, in one transaction. Nodes do not wait for it."""

T = TypeVar("T")


class SharedLogMaintainer:
    """Opens a connection for every read; refuses snapshots that were folded before an erasure."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._maintenance = PostgresMaintenance(dsn)
        self._erasures = self._do(self._maintenance.erasures)

    def extent(self) -> LogExtent:
        return self._read(lambda reader: reader.extent())

    def erasures(self) -> int:
        return self._erasures

    def model_in_force(self) -> ModelBundle | None:
        return self._read(lambda reader: reader.model_in_force())

    def put_snapshots(self, snapshots: Sequence[Snapshot]) -> None:
        version, digest = model_key(self.model_in_force())
        self._do(lambda: require_publishable(snapshots, self.extent().head, version, digest))
        self._do(lambda: self._publish(snapshots))

    def set_archive(self, location: str) -> None:
        self._do(lambda: self._maintenance.set_archive(location))

    def prune_step(self, upto: int) -> int:
        return self._do(lambda: self._maintenance.prune_batch(upto))

    def erase(self, tombstones: Sequence[tuple[int, bytes]], partitions: Sequence[str] = ()) -> int:
        erased = 0
        for batch in tombstone_batches(tombstones):
            done = self._do(partial(self._maintenance.erase, batch, partitions))
            erased += done.events
            self._erasures += done.erasures == self._erasures + 1
        return erased

    def reclaim(self) -> None:
        self._do(self._maintenance.reclaim)

    def close(self) -> None:
        self._maintenance.close()

    def _publish(self, snapshots: Sequence[Snapshot]) -> None:
        with closing(open_pipeline(self._dsn, Timeouts())) as pipeline:
            postgres_snapshots.put(pipeline, snapshots, self._erasures, per_statement=SNAPSHOTS_PER_STATEMENT)
        require_unerased(self._erasures, self._maintenance.erasures())

    def _read(self, ask: Callable[[PostgresReader], T]) -> T:
        def read() -> T:
            with closing(PostgresReader.open(self._dsn)) as reader:
                return ask(reader)

        return self._do(read)

    def _do(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except (MaintenanceRefused, StorageError, StoreUnusable) as error:
            raise MaintenanceFailed(str(error)) from error
