"""What each front is to be told, gathered while a group is judged and handed over when it is durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unisono.ipc.channel import Channel, ChannelClosed
from unisono.ipc.messages import Message


class Outboxes:
    """One outbox per front; a front that is gone is told nothing.

    `lost` is called for a channel whose other side is gone or takes nothing any more.
    """

    def __init__(self, fronts: Sequence[Channel], lost: Callable[[Channel, ChannelClosed], None]) -> None:
        self._outboxes: dict[Channel, list[Message]] = {front: [] for front in fronts}
        self._lost = lost

    def __contains__(self, channel: Channel) -> bool:
        return channel in self._outboxes

    @property
    def fronts(self) -> list[Channel]:
        return list(self._outboxes)

    def forget(self, front: Channel) -> None:
        del self._outboxes[front]

    def tell(self, front: Channel, message: Message) -> None:
        outbox = self._outboxes.get(front)
        if outbox is not None:
            outbox.append(message)

    def tell_all(self, message: Message) -> None:
        for outbox in self._outboxes.values():
            outbox.append(message)

    def tell_only(self, message: Message) -> None:
        """Whatever was to be told is void; this is what everybody hears, at once."""
        for front in self._outboxes:
            self._outboxes[front] = [message]
        self.flush()

    def flush(self) -> None:
        for front, outbox in list(self._outboxes.items()):
            if outbox:
                self._outboxes[front] = []
                self.send(front, outbox)

    def send(self, channel: Channel, messages: Sequence[Message]) -> None:
        """At once, past the outbox."""
        try:
            channel.send(messages)
        except ChannelClosed as error:
            self._lost(channel, error)
