"""Catch-up pages for the fronts, in a process of its own, so that history never delays a commit."""

from __future__ import annotations

import logging
import selectors
from collections.abc import Callable, Sequence

from unisono.ipc.channel import Channel, ChannelAborted, ChannelClosed
from unisono.ipc.messages import (
    AskPage,
    AskStats,
    CancelPage,
    Drain,
    Message,
    PageFailed,
    PageResult,
    PeerFailed,
    Ready,
    SnapshotStart,
    Stats,
)
from unisono.ipc.stats import Counters
from unisono.lake.cold.archive import ArchiveFailed
from unisono.protocol.codec import encode_event, encode_snapshot
from unisono.reader.cold_pages import ColdPages
from unisono.reader.snapshot_start import starting_points
from unisono.store.cluster import StoreLost
from unisono.store.maintenance import NO_MODEL_VERSION
from unisono.store.port import LogReader, Pruned, Snapshot, StorageError, StoreUnusable

_logger = logging.getLogger("unisono.reader")


def page_of(log: LogReader, ask: AskPage) -> PageResult:
    """Read one page, and what it starts from, and put them into the words of the wire."""
    if ask.log is not None and ask.log != log.identity():
        raise StoreLost(f"this is not the log with log_epoch {ask.log.log_epoch}")
    floors, bytes_max, told = ask.floors, ask.bytes_max, tuple[bytes, ...]()
    if (start := ask.start) is not None:
        snapshots = _starting_points(log, ask, start)
        floors = {each.partition: each.committed_id for each in snapshots}
        told = tuple(
            encode_snapshot(
                each.partition, each.committed_id, start.model_version, start.model_digest, each.state
            )
            for each in snapshots
        )
        bytes_max = max(1, min(bytes_max, start.bytes_max - sum(map(len, told))))
    page = log.page(
        ask.partitions, ask.since, ask.upto, limit=ask.limit, bytes_max=bytes_max, snapshot_starts=floors
    )
    events = tuple(
        encode_event(r.committed_id, r.id, r.client_id, r.partitions, r.event, r.status_updated_at)
        for r in page.records
    )
    last = page.records[-1].committed_id if page.records else ask.since
    return PageResult(ask.ticket, events, last, page.has_more, told, floors)


def _starting_points(log: LogReader, ask: AskPage, start: SnapshotStart) -> list[Snapshot]:
    version = NO_MODEL_VERSION if start.model_version is None else start.model_version
    return starting_points(
        log, ask.partitions, version, ask.upto, start.snapshot_bytes_max, start.model_digest
    )


def answer(log: LogReader, ask: AskPage) -> PageResult | PageFailed:
    """A page, or the word that log or archive are out of reach; a shared log even after one more try to reach it."""
    try:
        try:
            page = page_of(log, ask)
        except StoreLost:
            log.reopen()
            page = page_of(log, ask)
        if not page.has_more and log.head() < ask.upto:
            # A server left behind by a failover: the history would seem to end too early (SYNC-01).
            raise StoreLost(f"this log ends before {ask.upto}")
    except (StoreLost, ArchiveFailed) as error:
        _logger.warning("a page could not be read: %s", error)
        return PageFailed(ask.ticket)
    return page


class _Answering:
    """Answers from a log that is opened when it is needed first."""

    def __init__(self, whole: Callable[[], LogReader]) -> None:
        self._whole = whole
        self._log: LogReader | None = None

    def __call__(self, ask: AskPage) -> PageResult | PageFailed:
        try:
            self._log = self._log or self._whole()
        except (StoreUnusable, StoreLost) as error:
            _logger.warning("a page could not be read: %s", error)
            return PageFailed(ask.ticket)
        return answer(self._log, ask)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()


class Reader:
    """Answers AskPage on any number of channels, in the order they come; pages that need the archive come later.

    Ends when the node's channel ends or says Drain; a front that ends is forgotten, and of one that is given up the
    node is told. `whole` opens a reader that reads the archive too, for a thread of its own.
    """

    def __init__(
        self,
        log: LogReader,
        node: Channel,
        fronts: Sequence[Channel],
        whole: Callable[[], LogReader] | None = None,
    ) -> None:
        self._log = log
        self._node = node
        self._whole = whole
        self._cold: ColdPages[Channel] | None = None
        self._selector = selectors.DefaultSelector()
        self._channels = {node, *fronts}
        for channel in (node, *fronts):
            self._selector.register(channel, selectors.EVENT_READ, channel)
        self._counters = Counters()

    def run(self) -> None:
        self._node.send([Ready()])
        try:
            while True:
                for key, _ in self._selector.select():
                    channel: Channel | None = key.data
                    if channel is None:
                        going_on = self._send_cold()
                    else:
                        going_on = channel not in self._channels or self._hear(channel)
                    if not going_on:
                        return
        finally:
            if self._cold is not None:
                self._cold.close()

    def _hear(self, channel: Channel) -> bool:
        try:
            return self._serve(channel)
        except ChannelClosed as error:
            return self._lose(channel, error)

    def _lose(self, channel: Channel, why: ChannelClosed) -> bool:
        """A channel has ended, or was given up: a front that is stalled cannot end by itself, so the node is told.

        False when there is nobody left to work for.
        """
        if channel in self._channels:
            self._channels.remove(channel)
            self._selector.unregister(channel)
            channel.close()
            if self._cold is not None:
                self._cold.forget(channel)
            if channel is not self._node and isinstance(why, ChannelAborted):
                _logger.error("channel to %s aborted: %s", channel.peer, why, extra={"peer": channel.peer})
                return self._to_node([PeerFailed(channel.peer, str(why))])
        return self._node in self._channels

    def _to_node(self, messages: Sequence[Message]) -> bool:
        try:
            self._node.send(messages)
        except ChannelClosed as error:
            return self._lose(self._node, error)
        return True

    def _page(self, channel: Channel, ask: AskPage) -> None:
        """Answer with a page of the log, or leave the question to whoever reads the archive.

        A history that starts from snapshots may well lie above what has left the log, so that is tried.
        """
        if self._cold is None or ask.start is not None or not self._cold.wants(ask):
            try:
                self._tell(channel, answer(self._log, ask))
            except Pruned as pruned:
                if self._whole is None:
                    raise StorageError(f"there is no archive here, and {pruned}") from pruned
                self._cold = self._cold or self._open_cold(self._whole)
                self._cold.note(ask, pruned.upto)
            else:
                return
        self._cold.ask(channel, ask)

    def _open_cold(self, whole: Callable[[], LogReader]) -> ColdPages[Channel]:
        cold: ColdPages[Channel] = ColdPages(_Answering(whole))
        self._selector.register(cold, selectors.EVENT_READ, None)
        return cold

    def _send_cold(self) -> bool:
        assert self._cold is not None
        for channel, page in self._cold.answers():
            self._counters.add("sync_archive_pages")
            try:
                self._tell(channel, page)
            except ChannelClosed as error:
                if not self._lose(channel, error):
                    return False
        return True

    def _cancelled(self, channel: Channel, ticket: int) -> None:
        self._counters.add("sync_pages_cancelled")
        channel.send([PageFailed(ticket)])

    def _tell(self, channel: Channel, page: PageResult | PageFailed) -> None:
        if isinstance(page, PageResult):
            self._counters.add("sync_pages")
            self._counters.add("sync_page_events", len(page.events))
            if page.snapshots:
                self._counters.add("sync_snapshots", len(page.snapshots))
                self._counters.add("sync_snapshot_bytes", sum(map(len, page.snapshots)))
        else:
            self._counters.add("sync_pages_failed")
        channel.send([page])

    def _serve(self, channel: Channel) -> bool:
        messages = channel.receive()
        cancelled = {message.ticket for message in messages if isinstance(message, CancelPage)}
        for message in messages:
            match message:
                case AskPage() if message.ticket in cancelled:
                    self._cancelled(channel, message.ticket)
                case AskPage():
                    self._page(channel, message)
                case CancelPage():
                    if self._cold is not None and self._cold.cancel(channel, message.ticket):
                        self._cancelled(channel, message.ticket)
                case AskStats():
                    self._counters.set(
                        "archive_pages_waiting", 0 if self._cold is None else self._cold.waiting
                    )
                    channel.send([Stats(message.ticket, self._counters.dump())])
                case Drain():
                    return False
                case _:
                    raise ChannelAborted(f"a reader is not asked {type(message).__name__}")
        return True
