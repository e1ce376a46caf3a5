"""Pages in wire form, for log readers that encode the records of a page one by one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from unisono.protocol.codec import encode_event, with_author
from unisono.store.batch_ends import records_before_open_batch
from unisono.store.port import NO_SNAPSHOT_STARTS, Page, Record, WirePage


class EncodedPages(ABC):
    """The wire forms of a log reader's pages."""

    @abstractmethod
    def page(
        self,
        partitions: Sequence[str],
        since: int,
        upto: int,
        *,
        limit: int,
        bytes_max: int,
        snapshot_starts: Mapping[str, int] = NO_SNAPSHOT_STARTS,
    ) -> Page: ...

    def wire_page(
        self,
        partitions: Sequence[str],
        since: int,
        upto: int,
        *,
        limit: int,
        bytes_max: int,
        snapshot_starts: Mapping[str, int] = NO_SNAPSHOT_STARTS,
        authors: bool = False,
        whole_batches: bool = False,
    ) -> WirePage:
        page = self.page(
            partitions, since, upto, limit=limit, bytes_max=bytes_max, snapshot_starts=snapshot_starts
        )
        records = page.records
        if whole_batches and page.has_more:
            records = records[: records_before_open_batch(records)]
        return encoded(records, page.has_more, since, authors)

    @abstractmethod
    def newest_page(self, partition: str, upto: int, *, limit: int, bytes_max: int) -> Page: ...

    def newest_wire_page(
        self, partition: str, upto: int, *, limit: int, bytes_max: int, authors: bool = False
    ) -> WirePage:
        page = self.newest_page(partition, upto, limit=limit, bytes_max=bytes_max)
        return encoded(page.records, page.has_more, 0, authors)


def encoded(records: Sequence[Record], has_more: bool, since: int, authors: bool) -> WirePage:
    """The records of a page in the wire's form."""
    events = [
        with_author(
            encode_event(r.committed_id, r.id, r.client_id, r.partitions, r.event, r.status_updated_at),
            r.author if authors else "",
        )
        for r in records
    ]
    last = records[-1].committed_id if records else since
    return WirePage(b",".join(events), len(events), last, has_more)
