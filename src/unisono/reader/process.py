"""The reader process: catch-up pages for the fronts, so that history never delays a commit."""

from __future__ import annotations

import logging
import selectors
from collections.abc import Callable, Sequence
from functools import partial

from unisono.ipc.channel import Channel, ChannelAborted, ChannelClosed
from unisono.ipc.messages import AskStats, Drain, Message, PeerFailed, Ready, Stats
from unisono.ipc.page_messages import AskNewest, AskPage, CancelPage, PageFailed, PageResult
from unisono.ipc.stats import Counters
from unisono.lake.cold.archive import ColdWatermarks
from unisono.reader.cold_pages import ColdPages, PageAsk
from unisono.reader.read_ahead import ReadAhead
from unisono.reader.read_page import ArchivePages, answer_newest, answer_page
from unisono.store.port import LogReader, Pruned, StorageError
from unisono.store.sqlite.reader import SqliteReader

logger = logging.getLogger("unisono.reader")


class Reader:
    """Answers AskPage and AskNewest on any number of channels: hot pages at once and in order, cold pages later.

    A page is cold when events of it have left the hot log. The reader decides that once, and remembers it in
    `_cold_sets` for the next pages of the same partitions; `open_archived` opens a log reader that shares these and
    reads the archive too, for a thread of its own.

    Ends when the node sends Drain or disconnects. A front that disconnects is forgotten; the node is informed of one
    whose channel is aborted.
    """

    def __init__(
        self,
        log: LogReader,
        node: Channel,
        fronts: Sequence[Channel],
        open_archived: Callable[[ColdWatermarks], LogReader] | None = None,
    ) -> None:
        self._log = log
        self._node = node
        self._open_archived = open_archived
        self._cold: ColdPages[Channel] | None = None
        self._cold_sets = ColdWatermarks()
        self._selector = selectors.DefaultSelector()
        self._channels = {node, *fronts}
        for channel in (node, *fronts):
            self._selector.register(channel, selectors.EVENT_READ, channel)
        self._counters = Counters()
        self._ahead = ReadAhead(log) if isinstance(log, SqliteReader) else None

    def run(self) -> None:
        self._node.send([Ready()])
        try:
            while True:
                ready = self._selector.select(None if self._ahead is None or self._ahead.idle else 0)
                if not ready and self._ahead is not None:
                    self._ahead.read()
                for key, _ in ready:
                    channel: Channel | None = key.data
                    if channel is None:
                        go_on = self._send_cold_pages()
                    else:
                        go_on = channel not in self._channels or self._receive(channel)
                    if not go_on:
                        return
        finally:
            if self._cold is not None:
                self._cold.close()

    def _receive(self, channel: Channel) -> bool:
        """Handle what has arrived on a channel; False when the process is to end."""
        try:
            return self._handle(channel, channel.receive())
        except ChannelClosed as error:
            return self._disconnect(channel, error)

    def _handle(self, channel: Channel, messages: Sequence[Message]) -> bool:
        cancelled = {message.ticket for message in messages if isinstance(message, CancelPage)}
        for message in messages:
            match message:
                case AskPage() | AskNewest() if message.ticket in cancelled:
                    self._send_cancelled(channel, message.ticket)
                case AskPage():
                    self._answer(channel, message)
                case AskNewest():
                    self._answer_newest(channel, message)
                case CancelPage():
                    if self._cold is not None and self._cold.cancel(channel, message.ticket):
                        self._send_cancelled(channel, message.ticket)
                case AskStats():
                    self._counters.set(
                        "archive_pages_waiting", 0 if self._cold is None else self._cold.queued
                    )
                    channel.send([Stats(message.ticket, self._counters.dump())])
                case Drain():
                    return False
                case _:
                    raise ChannelAborted(f"unexpected message {type(message).__name__}")
        return True

    def _answer(self, channel: Channel, ask: AskPage) -> None:
        """Answer with a page of the hot log, or queue it for the thread that reads the archive.

        A history that starts from snapshots may lie above what has left the log, so the hot log is tried.
        """
        if ask.start is not None or ask.since >= self._cold_sets.upto(ask.partitions):
            try:
                page = (None if self._ahead is None else self._ahead.take(ask)) or answer_page(self._log, ask)
                self._send_page(channel, page)
                if self._ahead is not None and isinstance(page, PageResult):
                    self._ahead.answered(ask, page)
            except Pruned as pruned:
                self._cold_sets.note(ask.partitions, pruned.upto)
                self._ask_cold(channel, ask, pruned)
            return
        self._ask_cold(channel, ask)

    def _answer_newest(self, channel: Channel, ask: AskNewest) -> None:
        """As `_answer`. A page is from the log or from the archive, never from both (EXT-22)."""
        try:
            self._send_page(channel, answer_newest(self._log, ask))
        except Pruned as pruned:
            self._ask_cold(channel, ask, pruned)

    def _ask_cold(self, channel: Channel, ask: PageAsk, pruned: Pruned | None = None) -> None:
        if self._open_archived is None:
            raise StorageError(f"there is no archive, and {pruned}") from pruned
        if self._cold is None:
            self._cold = self._open_cold_pages(self._open_archived)
        self._cold.ask(channel, ask)

    def _open_cold_pages(self, open_archived: Callable[[ColdWatermarks], LogReader]) -> ColdPages[Channel]:
        cold: ColdPages[Channel] = ColdPages(ArchivePages(partial(open_archived, self._cold_sets)))
        self._selector.register(cold, selectors.EVENT_READ, None)
        return cold

    def _send_cold_pages(self) -> bool:
        assert self._cold is not None
        for channel, page in self._cold.take_answers():
            self._counters.add("sync_archive_pages")
            try:
                self._send_page(channel, page)
            except ChannelClosed as error:
                if not self._disconnect(channel, error):
                    return False
        return True

    def _send_cancelled(self, channel: Channel, ticket: int) -> None:
        self._counters.add("sync_pages_cancelled")
        channel.send([PageFailed(ticket)])

    def _send_page(self, channel: Channel, page: PageResult | PageFailed) -> None:
        if isinstance(page, PageResult):
            self._counters.add("sync_pages")
            self._counters.add("sync_page_events", page.count)
            if page.snapshots:
                self._counters.add("sync_snapshots", len(page.snapshots))
                self._counters.add("sync_snapshot_bytes", sum(map(len, page.snapshots)))
        else:
            self._counters.add("sync_pages_failed")
        channel.send([page])

    def _disconnect(self, channel: Channel, error: ChannelClosed) -> bool:
        """A channel has ended. The node learns if it was aborted here: a stalled front does not end by itself.

        False when the node is gone.
        """
        if channel in self._channels:
            self._channels.remove(channel)
            self._selector.unregister(channel)
            channel.close()
            if self._cold is not None:
                self._cold.cancel_all(channel)
            if channel is not self._node and isinstance(error, ChannelAborted):
                logger.error("channel to %s aborted: %s", channel.peer, error, extra={"peer": channel.peer})
                self._send_to_node(PeerFailed(channel.peer, str(error)))
        return self._node in self._channels

    def _send_to_node(self, message: Message) -> None:
        try:
            self._node.send([message])
        except ChannelClosed as error:
            self._disconnect(self._node, error)
