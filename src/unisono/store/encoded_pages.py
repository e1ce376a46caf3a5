"""Pages in wire form, for log readers that encode the records of a page one by one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from unisono.protocol.codec import encode_event, with_author
from unisono.store.port import NO_SNAPSHOT_STARTS, Page, WirePage


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
    ) -> WirePage:
        return encoded(
            self.page(
                partitions, since, upto, limit=limit, bytes_max=bytes_max, snapshot_starts=snapshot_starts
            ),
            authors,
        )

    @abstractmethod
    def newest_page(self, partition: str, upto: int, *, limit: int, bytes_max: int) -> Page: ...

    def newest_wire_page(
        self, partition: str, upto: int, *, limit: int, bytes_max: int, authors: bool = False
    ) -> WirePage:
        return encoded(self.newest_page(partition, upto, limit=limit, bytes_max=bytes_max), authors)


def encoded(page: Page, authors: bool) -> WirePage:
    """The records of a page in the wire's form."""
    return WirePage(
        [record.committed_id for record in page.records],
        [
            with_author(
                encode_event(r.committed_id, r.id, r.client_id, r.partitions, r.event, r.status_updated_at),
                r.author if authors else "",
            )
            for r in page.records
        ],
        page.has_more,
    )
