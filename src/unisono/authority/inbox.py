"""Messages from the node and the fronts, queued in order of arrival."""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from unisono.ipc.channel import Channel, ChannelClosed
from unisono.ipc.cores import usable_cores
from unisono.ipc.messages import Message

SPIN_S: Final = 0.0002
"""How long to look for a message without sleeping: about as long as it takes until a client that has its answer has
sent the next request. Going to sleep and being woken takes a quarter of that time."""


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
        self._may_spin = usable_cores() >= 2
        self._comes_soon = False
        """Whether the last wait was a short one."""
        self._channels = set(channels)
        self._selector = selectors.DefaultSelector()
        for channel in channels:
            self._selector.register(channel, selectors.EVENT_READ, channel)
        if wake_fd is not None:
            self._selector.register(wake_fd, selectors.EVENT_READ, None)

    def collect(self, timeout_s: float, *, alone: bool = False) -> None:
        """Queue what has arrived; wait up to `timeout_s` when nothing has.

        `alone`: one client is being served. Then it looks for a short time before it sleeps, as long as that finds
        something; with more clients it would take their core from the front.
        """
        for key, _ in self._wait(timeout_s, spinning=alone and self._comes_soon and self._may_spin):
            channel: Channel | None = key.data
            if channel is None:
                continue
            try:
                for message in channel.receive():
                    self.queue.append((channel, message))
            except ChannelClosed as error:
                self._disconnected(channel, error)

    def _wait(self, timeout_s: float, *, spinning: bool) -> list[tuple[selectors.SelectorKey, int]]:
        began = time.monotonic()
        while spinning and timeout_s:
            if ready := self._selector.select(0):
                return ready
            spinning = time.monotonic() - began < SPIN_S
        ready = self._selector.select(timeout_s)
        self._comes_soon = time.monotonic() - began < SPIN_S
        return ready

    def remove(self, channel: Channel) -> bool:
        """Stop reading a channel; False when it was removed before."""
        if channel not in self._channels:
            return False
        self._channels.remove(channel)
        self._selector.unregister(channel)
        return True
