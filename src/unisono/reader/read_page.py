"""One AskPage → one page in wire form, from whatever log reader is given."""

from __future__ import annotations

import logging
from collections.abc import Callable

from unisono.ipc.page_messages import AskNewest, AskPage, PageFailed, PageResult
from unisono.lake.cold.archive import ArchiveFailed
from unisono.protocol.codec import encode_snapshot
from unisono.reader.snapshot_start import starting_snapshots
from unisono.store.cluster import StoreLost
from unisono.store.maintenance import NO_MODEL_VERSION
from unisono.store.port import LogReader, StoreUnusable

logger = logging.getLogger("unisono.reader")


def read_page(log: LogReader, ask: AskPage) -> PageResult:
    """Read one page and the snapshots it starts from, and encode them."""
    if ask.log is not None and ask.log != log.identity():
        raise StoreLost(f"the log is not the one with log_epoch {ask.log.log_epoch}")
    snapshot_starts, bytes_max, encoded = ask.snapshot_starts, ask.bytes_max, tuple[bytes, ...]()
    if (start := ask.start) is not None:
        version = NO_MODEL_VERSION if start.model_version is None else start.model_version
        snapshots = starting_snapshots(
            log, ask.partitions, version, ask.upto, start.snapshot_bytes_max, start.model_digest
        )
        snapshot_starts = {each.partition: each.committed_id for each in snapshots}
        encoded = tuple(
            encode_snapshot(
                each.partition, each.committed_id, start.model_version, start.model_digest, each.state
            )
            for each in snapshots
        )
        bytes_max = max(1, min(bytes_max, start.bytes_max - sum(map(len, encoded))))
    page = log.wire_page(
        ask.partitions,
        ask.since,
        ask.upto,
        limit=ask.limit,
        bytes_max=bytes_max,
        snapshot_starts=snapshot_starts,
        authors=ask.authors,
        whole_batches=ask.whole_batches,
    )
    return PageResult(ask.ticket, page.events, page.count, page.last, page.has_more, encoded, snapshot_starts)


def read_newest(log: LogReader, ask: AskNewest) -> PageResult:
    """Read one page backwards, and encode it."""
    if ask.log is not None and ask.log != log.identity():
        raise StoreLost(f"the log is not the one with log_epoch {ask.log.log_epoch}")
    page = log.newest_wire_page(
        ask.partition, ask.upto, limit=ask.limit, bytes_max=ask.bytes_max, authors=ask.authors
    )
    if log.head() < ask.upto:
        # A database server left behind by a failover: the newest events would be missing.
        raise StoreLost(f"the log ends before {ask.upto}")
    return PageResult(ask.ticket, page.events, page.count, page.last, page.has_more)


def answer_newest(log: LogReader, ask: AskNewest) -> PageResult | PageFailed:
    """As `answer_page`, for a page that is read backwards."""
    try:
        try:
            return read_newest(log, ask)
        except StoreLost:
            log.reopen()
            return read_newest(log, ask)
    except (StoreLost, ArchiveFailed) as error:
        return _failed(ask, error)


def answer_page(log: LogReader, ask: AskPage) -> PageResult | PageFailed:
    """A page, or PageFailed while the log or the archive is unavailable. A shared log is reopened once.

    Raises Pruned when `log` lacks events of the page that have moved to the archive.
    """
    try:
        try:
            page = read_page(log, ask)
        except StoreLost:
            log.reopen()
            page = read_page(log, ask)
        if not page.has_more and log.head() < ask.upto:
            # A database server left behind by a failover: the history would end too early (SYNC-01).
            raise StoreLost(f"the log ends before {ask.upto}")
    except (StoreLost, ArchiveFailed) as error:
        return _failed(ask, error)
    return page


class ArchivePages:
    """Answers pages from a log reader that includes the archive and is opened when it is first needed."""

    def __init__(self, open_archived: Callable[[], LogReader]) -> None:
        self._open_archived = open_archived
        self._log: LogReader | None = None

    def __call__(self, ask: AskPage | AskNewest) -> PageResult | PageFailed:
        try:
            self._log = self._log or self._open_archived()
        except (StoreUnusable, StoreLost) as error:
            return _failed(ask, error)
        if isinstance(ask, AskNewest):
            return answer_newest(self._log, ask)
        return answer_page(self._log, ask)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()


def _failed(ask: AskPage | AskNewest, error: Exception) -> PageFailed:
    if isinstance(ask, AskNewest):
        logger.warning(
            "page of %r up to %d not read: %s",
            ask.partition,
            ask.upto,
            error,
            extra={"partition": ask.partition, "upto": ask.upto},
        )
        return PageFailed(ask.ticket)
    logger.warning(
        "page after %d of %d partitions not read: %s",
        ask.since,
        len(ask.partitions),
        error,
        extra={"since": ask.since, "partitions": len(ask.partitions)},
    )
    return PageFailed(ask.ticket)
