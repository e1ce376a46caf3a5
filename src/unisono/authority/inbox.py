"""Messages from the node and the fronts, queued in order of arrival."""

from __future__ import annotations

import selectors
from collections import deque
from collections.abc import Callable, Sequence

from unisono.ipc.channel import Channel, ChannelClosed
from unisono.ipc.messages import Message


class Inbox:
    """Reads channels into `queue`. `draining`: the authority finishes what is queued and then ends.

    `disconnected` is called for a channel that has ended.
    """

    def __init__(
        self,
        channels: Sequence[Channel],
        wake_fd: int | None,
        disconnected: Callable[[Channel, ChannelClosed], None],
    ) -> None:
        """`wake_fd` becomes readable when other nodes may have done something; it interrupts `collect`."""
        self.queue: deque[tuple[Channel, Message]] = deque()
        self.draining = False
        self._disconnected = disconnected
        self._channels = set(channels)
        self._selector = selectors.DefaultSelector()
        for channel in channels:
            self._selector.register(channel, selectors.EVENT_READ, channel)
        if wake_fd is not None:
            self._selector.register(wake_fd, selectors.EVENT_READ, None)

    def collect(self, timeout_s: float) -> None:
        """Queue what has arrived; wait up to `timeout_s` when nothing has."""
        for key, _ in self._selector.select(timeout_s):
            channel: Channel | None = key.data
            if channel is None:
                continue
            try:
                for message in channel.receive():
                    self.queue.append((channel, message))
            except ChannelClosed as error:
                self._disconnected(channel, error)

    def remove(self, channel: Channel) -> bool:
        """Stop reading a channel; False when it was removed before."""
        if channel not in self._channels:
            return False
        self._channels.remove(channel)
        self._selector.unregister(channel)
        return True
