"""The same history folded by Spark, by the authority and by a client: is it one state, to the byte?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson

from unisono.authority.states.resident import States
from unisono.client.view.partition import PartitionView
from unisono.lake.lake import Lake
from unisono.lake.snapshots import StateRow
from unisono.model.authorship import authorship_of
from unisono.model.model import CANONICAL, COMPATIBILITY, Model
from unisono.model.pack import pack
from unisono.model.partition import PartitionState
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.snapshot.job import latest
from unisono.store.port import CommitLog, Record
from unisono.store.sqlite.log import SqliteLog


def by_partition(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        for name in record.partitions:
            found.setdefault(name, []).append(record)
    return found


def replayed(model: Model, records: Sequence[Record]) -> tuple[bytes, int]:
    """The plain fold: bytes of the state, and how many events did not fit."""
    state = PartitionState()
    for record in records:
        by = authorship_of(record.client_id, record.author, record.status_updated_at)
        model.apply_committed(state, orjson.loads(record.event), by)
        state.settle()
    return pack(state.dump()), state.skipped


def require_replay(lake: Lake, shipped: ShippedModel, records: Sequence[Record]) -> dict[str, StateRow]:
    """Every partition's newest snapshot is the replay of its events, and no partition is missing or strange."""
    rows = {row.partition: row for row in latest(lake, shipped.version)}
    histories = by_partition(records)
    assert rows.keys() == histories.keys()
    model = shipped.load()
    for name, history in histories.items():
        row = rows[name]
        row.require_sound()
        assert (row.state, row.skipped) == replayed(model, history), name
        assert row.events == len(history)
        assert history[-1].committed_id <= row.committed_id <= lake.head()
    return rows


def require_one_state(directory: Path, lake: Lake, shipped: ShippedModel, records: Sequence[Record]) -> int:
    """Spark's states are the authority's and the client's; how many partitions were compared."""
    model = shipped.load()
    histories = by_partition(records)
    rows = {row.partition: row for row in latest(lake, shipped.version)}
    assert rows.keys() == histories.keys()
    log = SqliteLog.open(directory)
    try:
        for name, state in _authority(model, log, sorted(histories)):
            assert rows[name].state == state, f"{name}: Spark and the authority differ"
    finally:
        log.close()
    for name, history in histories.items():
        view = PartitionView(model)
        view.fold(
            (
                record.committed_id,
                record.event,
                authorship_of(record.client_id, record.author, record.status_updated_at),
            )
            for record in history
        )
        held = orjson.loads(rows[name].state)
        assert {"tree": view.dump(COMPATIBILITY), "data": view.dump(CANONICAL)} == held, name
        base = view.base(history[-1].committed_id)
        assert base is None or base[1] == rows[name].state, f"{name}: Spark and the client differ"
    return len(rows)


def _authority(model: Model, log: CommitLog, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """What the authority's own states write as snapshots, from the log alone."""
    states = States(model, log, bytes_max=1 << 30, snapshot_every=0, now_ms=lambda: 0)
    for name in names:
        while (snapshot := states.write_snapshot(name)) is None:
            states.reset_fold_budget()
            states.advance()
        assert snapshot.model_version == states.snapshot_version
        yield name, snapshot.state
