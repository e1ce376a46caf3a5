"""Snapshots in the shared log, written between groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from unisono.store.batching import in_batches
from unisono.store.port import Snapshot
from unisono.store.postgres.pipeline_connection import PipelineConnection
from unisono.store.postgres.rows import Blobs, Integers, Texts, escape

PER_STATEMENT_MAX: Final = 128
BYTES_PER_STATEMENT_MAX: Final = 4 << 20
"""Upper bounds of one statement, about ten milliseconds, because this node's groups wait for it."""


def put(
    pipeline: PipelineConnection,
    snapshots: Sequence[Snapshot],
    erasures: int,
    *,
    per_statement: int = PER_STATEMENT_MAX,
) -> None:
    """Store snapshots, each batch in its own transaction; an older one never replaces a newer one.

    `erasures`: their count when the states were folded. After a later erasure the snapshots are ignored.
    """
    for batch in _batches(snapshots, per_statement):
        parameters = {
            "partitions": Texts(escape(s.partition) for s in batch),
            "versions": Integers([s.model_version for s in batch]),
            "committed_ids": Integers([s.committed_id for s in batch]),
            "times": Integers([s.created_at for s in batch]),
            "states": Blobs([s.state for s in batch]),
            "digests": Texts(s.model_digest for s in batch),
            "erasures": erasures,
        }
        pipeline.send("lock_snapshots_shared")
        pipeline.send("put_snapshots", parameters)
        pipeline.sync()  # one transaction


def _batches(snapshots: Sequence[Snapshot], count_max: int) -> Iterator[list[Snapshot]]:
    """The newest of each partition and version, in order of both, so that nodes do not deadlock."""
    newest: dict[tuple[str, int], Snapshot] = {}
    for snapshot in snapshots:
        key = (snapshot.partition, snapshot.model_version)
        if key not in newest or newest[key].committed_id <= snapshot.committed_id:
            newest[key] = snapshot
    return in_batches(
        (newest[key] for key in sorted(newest)),
        lambda snapshot: len(snapshot.state),
        count_max=count_max,
        bytes_max=BYTES_PER_STATEMENT_MAX,
    )
