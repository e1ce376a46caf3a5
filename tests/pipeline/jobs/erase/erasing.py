"""A log and a lake with planted strings, and what must be left of them after an erasure."""

from __future__ import annotations

import hashlib
from contextlib import closing
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from tests.lake.lakes import HERE, spreading
from tests.pipeline.canaries import CULPRIT, append, folded, holders, planted
from tests.pipeline.history import require_exact
from unisono.lake.lake import Lake
from unisono.pipeline.compare import compare_rows, verify
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.compact.job import compact
from unisono.pipeline.jobs.erase.erasure_table import erasures
from unisono.pipeline.jobs.erase.job import EraseSummary, erase, plan
from unisono.pipeline.jobs.erase.select import Selector
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.snapshot.job import latest, snapshot
from unisono.pipeline.maintain.embedded import open_maintainer
from unisono.pipeline.open_log import sqlite_uri
from unisono.protocol.tombstones import is_tombstone, tombstone
from unisono.store.check import check_directory
from unisono.store.port import Record, Snapshot
from unisono.store.sqlite.log import SqliteLog, SqliteReader

BY_CULPRIT = Selector("client", (CULPRIT,))


def prepare(data: Path, lake: Lake) -> list[Record]:
    """1,000 events: 300 have left the log, 800 are in the lake, snapshots of all partitions in both."""
    store = sqlite_uri(data)
    lake.make(buckets=4)
    with closing(SqliteLog.open(data)) as log:
        records = append(log, 500)
    export(HERE, store, lake, events_per_file=200)
    snapshot(HERE, lake, ShippedModel.open())
    with spreading():
        compact(HERE, lake)
    with closing(SqliteLog.open(data)) as log:
        records += append(log, 300, seed=2)
    export(HERE, store, lake)
    snapshot(HERE, lake, ShippedModel.open())
    with closing(open_maintainer(store)) as maintainer:
        maintainer.put_snapshots(states(lake))
        maintainer.set_archive(lake.storage.location)
        while maintainer.prune_step(300):
            pass
    with closing(SqliteLog.open(data)) as log:
        records += append(log, 200, seed=3)
    assert len(planted(records)) == 25
    return records


def states(lake: Lake) -> list[Snapshot]:
    """The lake's snapshots as a log keeps them."""
    return [
        Snapshot(row.partition, row.committed_id, 0, row.state, row.created_at) for row in latest(lake, 0)
    ]


def expected(records: list[Record], lake: Lake) -> list[Record]:
    """The records with tombstones for what is recorded as erased."""
    times = {row.committed_id: row.erased_at for row in erasures(lake)}
    return [
        msgspec.structs.replace(record, event=tombstone(times[record.committed_id]), author="")
        if record.committed_id in times
        else record
        for record in records
    ]


def require_erased(data: Path, lake: Lake, records: list[Record], pruned_to: int = 300) -> None:
    """Nothing is left of the planted events but their tombstones, and all others are what they were."""
    assert list(holders(data, Path(lake.storage.location))) == []
    wanted = expected(records, lake)
    assert [record.committed_id for record in wanted if is_tombstone(record.event)] == [
        record.committed_id for record in planted(records)
    ]
    require_exact(lake, [record for record in wanted if record.committed_id <= lake.head()])
    with closing(SqliteReader.open(data)) as reader:
        assert list(reader.scan(pruned_to, reader.head(), limit=10_000)) == wanted[pruned_to:]
    assert check_directory(data).ok, check_directory(data).text()
    assert all(part.equal for part in verify(HERE, sqlite_uri(data), lake))
    assert not any(
        part.problem for part in compare_rows(HERE, sqlite_uri(data), lake.view(), pruned_to, lake.head())
    )
    with closing(SqliteLog.open(data)) as log:
        known = log.begin([record.id for record in records]).known
        log.abandon()
    assert {id: (told.committed_id, told.hash) for id, told in known.items()} == {
        record.id: (record.committed_id, record.hash) for record in records
    }


def require_states(data: Path, lake: Lake, records: list[Record]) -> None:
    """Snapshots, of the log and of the lake, are what folding the history with its tombstones gives."""
    wanted = expected(records, lake)
    names = {name for record in planted(records) for name in record.partitions}
    rows = {row.partition: row for row in latest(lake, 0)}
    with closing(SqliteReader.open(data)) as reader:
        for name in names:
            kept = reader.snapshot(name, 0)
            assert kept is not None, f"events of {name} have left the log, which rests on its snapshot"
            assert kept.state == folded(wanted, name, kept.committed_id)
    for name, row in rows.items():
        assert row.state == folded(wanted, name, row.committed_id), name
    assert names <= set(rows)


def run(spark: SparkSession, data: Path, lake: Lake, selector: Selector = BY_CULPRIT) -> EraseSummary:
    return run_on(spark, sqlite_uri(data), lake, selector)


def run_on(spark: SparkSession, store: str, lake: Lake, selector: Selector = BY_CULPRIT) -> EraseSummary:
    return erase(spark, store, lake, plan(spark, store, lake, selector), reason="a test")


def fingerprint(*directories: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for directory in directories
        for path in directory.rglob("*")
        if path.is_file() and path.stat().st_size and path.name not in ("lock", "log.db-shm")
    }
