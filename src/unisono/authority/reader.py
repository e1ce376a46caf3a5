"""Catch-up pages for the fronts, in a process of its own, so that history never delays a commit."""

from __future__ import annotations

import logging
import selectors
from collections.abc import Sequence

from unisono.authority.channel import (
    AskPage,
    AskStats,
    Channel,
    ChannelClosed,
    Drain,
    PageFailed,
    PageOf,
    Ready,
    Stats,
)
from unisono.authority.stats import Counters
from unisono.protocol.codec import encode_event
from unisono.store.cluster import StoreLost
from unisono.store.port import LogReader

log = logging.getLogger("unisono.reader")


def page_of(log: LogReader, ask: AskPage) -> PageOf:
    """Read one page and put it into the words of the wire."""
    page = log.page(ask.partitions, ask.since, ask.upto, limit=ask.limit, bytes_max=ask.bytes_max)
    events = tuple(
        encode_event(r.committed_id, r.id, r.client_id, r.partitions, r.event, r.status_updated_at)
        for r in page.records
    )
    last = page.records[-1].committed_id if page.records else ask.since
    return PageOf(ask.ticket, events, last, page.has_more)


class Reader:
    """Answers AskPage on any number of channels, one at a time, in the order they come.

    Ends when the node's channel ends or says Drain; a front that goes is forgotten.
    """

    def __init__(self, log: LogReader, node: Channel, fronts: Sequence[Channel]) -> None:
        self._log = log
        self._node = node
        self._selector = selectors.DefaultSelector()
        for channel in (node, *fronts):
            self._selector.register(channel, selectors.EVENT_READ, channel)
        self._counters = Counters()

    def run(self) -> None:
        self._node.send([Ready()])
        while True:
            for key, _ in self._selector.select():
                channel: Channel = key.data
                try:
                    if not self._serve(channel):
                        return
                except ChannelClosed:
                    if channel is self._node:
                        return
                    self._selector.unregister(channel)

    def _page(self, ask: AskPage) -> PageOf | PageFailed:
        """A page, or the word that a shared log is out of reach even after one more try to reach it."""
        try:
            try:
                page = page_of(self._log, ask)
            except StoreLost:
                self._log.reopen()
                page = page_of(self._log, ask)
            if not page.has_more and self._log.head() < ask.upto:
                # A server left behind by a failover: the history would seem to end too early (SYNC-01).
                raise StoreLost(f"this log ends before {ask.upto}")
        except StoreLost as error:
            log.warning("a page could not be read: %s", error)
            return PageFailed(ask.ticket)
        self._counters.add("sync_pages")
        self._counters.add("sync_page_events", len(page.events))
        return page

    def _serve(self, channel: Channel) -> bool:
        for message in channel.receive():
            match message:
                case AskPage():
                    channel.send([self._page(message)])
                case AskStats():
                    channel.send([Stats(message.ticket, self._counters.dump())])
                case Drain():
                    return False
                case _:
                    raise ChannelClosed(f"a reader is not asked {type(message).__name__}")
        return True
