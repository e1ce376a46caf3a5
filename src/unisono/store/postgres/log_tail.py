"""How far a node has read the shared log, and what other nodes have appended since.

Ids have no gaps and become visible in order, so reading everything after the last id seen misses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from psycopg import Cursor

from unisono.store.port import Record, StorageError
from unisono.store.postgres import identity as identities
from unisono.store.postgres.pipeline_connection import PipelineConnection
from unisono.store.postgres.rows import Row, escape, record
from unisono.vocabulary import LogIdentity

RECORDS_MAX: Final = 4_000
"""Records read at once: about ten milliseconds under the lock. A node further behind reads before it locks."""

BYTES_MAX: Final = 8 << 20
"""Event bytes read at once."""


class Tail:
    """One node's position in the log.

    Invariants: every record up to `seen` was given to the caller, once and in order. `_backlog` has the records that
    follow, read but not given out yet.
    """

    def __init__(self, pipeline: PipelineConnection) -> None:
        """Start at the head: what was committed before is not news."""
        self.model_version: int | None = None
        self.log_epoch = 1
        self._backlog: list[Record] = []
        self.seen, self._log_id, _ = _identity(pipeline, 0)
        self._seen_id = _identity(pipeline, self.seen)[2]
        self._take_head(pipeline.ask("read_head"), self.seen)

    def resume(self, pipeline: PipelineConnection) -> None:
        """Continue on a new connection; StorageError unless it leads to the same log with everything seen before.

        A log that lacks events this node has given out gets a new epoch, so that clients start over.
        """
        head, log_id, seen_id = _identity(pipeline, self.seen)
        if log_id != self._log_id:
            raise StorageError("the database holds another log than the one this node had open")
        if head < self.seen or seen_id not in (None, self._seen_id):
            now = identities.start_new_epoch(pipeline, LogIdentity(log_id.replace("-", ""), self.log_epoch))
            raise StorageError(
                f"committed events are missing: this node has read event {self.seen}, and the head is {head}. A "
                f"failover lost events. The log has log_epoch {now.log_epoch} from now on, and clients start over: "
                "restart the node"
            )
        self._take_head(pipeline.ask("read_head"), self.seen)

    @property
    def has_backlog(self) -> bool:
        """Whether records were read that were not given out yet."""
        return bool(self._backlog)

    @property
    def read_upto(self) -> int:
        return self._backlog[-1].committed_id if self._backlog else self.seen

    def send_query(self, pipeline: PipelineConnection) -> Cursor[Row]:
        """Add the query for the next records to a batch; `receive` takes its rows."""
        since = self.read_upto
        parameters = {"since": since, "upto": since + RECORDS_MAX, "bytes_max": BYTES_MAX}
        return pipeline.send("events_after", parameters)

    def receive(self, at_head: Cursor[Row], fresh: Cursor[Row]) -> int:
        """Add the rows of `send_query` to the backlog; the head at that moment."""
        since = self.read_upto
        head = self._take_head(at_head.fetchall(), since)
        records = [record(row) for row in fresh]
        if [r.committed_id for r in records] != list(range(since + 1, since + 1 + len(records))):
            raise StorageError(f"events are missing after {since}")
        self._backlog += records
        return max(head, self.read_upto)

    def take_backlog(self) -> list[Record]:
        """Empty the backlog, and count it as seen."""
        records, self._backlog = self._backlog, []
        self.mark_seen(records)
        return records

    def mark_seen(self, records: Sequence[Record]) -> None:
        """Count records as seen: they were given out, or this node appended them."""
        if records:
            self.seen, self._seen_id = records[-1].committed_id, escape(records[-1].id)

    def _take_head(self, at_head: Sequence[Row], since: int) -> int:
        if not at_head:
            raise StorageError("the head row is missing")
        head, pruned_to, self.model_version, self.log_epoch = at_head[0]
        if since < pruned_to:
            raise StorageError(f"the log is pruned to {pruned_to}, and this node has read only up to {since}")
        return int(head)


def _identity(pipeline: PipelineConnection, at: int) -> tuple[int, str, str | None]:
    """The head, the log's own id, and the id of the event at `at` if it is there."""
    rows = pipeline.ask("identity", {"at": at})
    if not rows:
        raise StorageError("the head row is missing")
    head, log_id, id = rows[0]
    return head, log_id, id
