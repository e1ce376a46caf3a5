"""How far a node has seen the shared log, and what others have appended since.

Ids have no gaps and become visible in order, so "everything after the last one seen" misses nothing.
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
"""Records read in one go, some ten milliseconds under the lock; a node further behind reads them before it."""

BYTES_MAX: Final = 8 << 20
"""Event bytes read in one go."""


class Tail:
    """One node's place in the log.

    Invariants: everything up to `seen` was handed out, in order, each record once; `_backlog` follows on it and
    waits to be handed out.
    """

    def __init__(self, pipeline: PipelineConnection) -> None:
        """What was committed before is not news: the place is the head."""
        self.model_version: int | None = None
        self.log_epoch = 1
        self._backlog: list[Record] = []
        self.seen, self._log_id, _ = _identity(pipeline, 0)
        self._seen_id = _identity(pipeline, self.seen)[2]
        self._take_head(pipeline.ask("read_head"), self.seen)

    def resume(self, pipeline: PipelineConnection) -> None:
        """On a new pipeline: is this the log that was left? StorageError when it is not.

        One that lacks what this node has told gets a new epoch, by which clients know that they have to start over.
        """
        head, log_id, seen_id = _identity(pipeline, self.seen)
        if log_id != self._log_id:
            raise StorageError("this is another log than the one this node had open")
        if head < self.seen or seen_id not in (None, self._seen_id):
            now = identities.start_new_epoch(pipeline, LogIdentity(log_id.replace("-", ""), self.log_epoch))
            raise StorageError(
                f"the log went back: this node has seen event {self.seen}, which is not there any more, and the "
                f"head is {head}. A failover lost committed events. The log has log_epoch {now.log_epoch} from now "
                "on, and clients start over; start the node anew"
            )
        self._take_head(pipeline.ask("read_head"), self.seen)

    @property
    def has_backlog(self) -> bool:
        """Whether records were read that nobody was handed yet."""
        return bool(self._backlog)

    @property
    def read_upto(self) -> int:
        return self._backlog[-1].committed_id if self._backlog else self.seen

    def send_query(self, pipeline: PipelineConnection) -> Cursor[Row]:
        """Add the query for what follows to a batch; `receive` reads its answer."""
        since = self.read_upto
        parameters = {"since": since, "upto": since + RECORDS_MAX, "bytes_max": BYTES_MAX}
        return pipeline.send("events_after", parameters)

    def receive(self, at_head: Cursor[Row], fresh: Cursor[Row]) -> int:
        """Put what a look brought back into the backlog; the head it saw."""
        since = self.read_upto
        head = self._take_head(at_head.fetchall(), since)
        records = [record(row) for row in fresh]
        if [r.committed_id for r in records] != list(range(since + 1, since + 1 + len(records))):
            raise StorageError(f"events are missing after {since}")
        self._backlog += records
        return max(head, self.read_upto)

    def take_backlog(self) -> list[Record]:
        """Everything in the backlog."""
        records, self._backlog = self._backlog, []
        self.mark_seen(records)
        return records

    def mark_seen(self, records: Sequence[Record]) -> None:
        """These were handed out, or are the node's own."""
        if records:
            self.seen, self._seen_id = records[-1].committed_id, escape(records[-1].id)

    def _take_head(self, at_head: Sequence[Row], since: int) -> int:
        if not at_head:
            raise StorageError("the head row is missing")
        head, pruned_to, self.model_version, self.log_epoch = at_head[0]
        if since < pruned_to:
            raise StorageError(f"this node has seen {since} events and the log begins after {pruned_to}")
        return int(head)


def _identity(pipeline: PipelineConnection, at: int) -> tuple[int, str, str | None]:
    """The head, the log's own id, and the id of the event at `at` if it is there."""
    rows = pipeline.ask("identity", {"at": at})
    if not rows:
        raise StorageError("the head row is missing")
    head, log_id, id = rows[0]
    return head, log_id, id
