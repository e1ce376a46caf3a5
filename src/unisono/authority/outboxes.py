"""Messages to the fronts: staged while a group is judged, sent when it is durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unisono.ipc.channel import Channel, ChannelClosed
from unisono.ipc.messages import Message


class Outboxes:
    """One outbox per connected front; messages to a front that has disconnected are dropped.

    `disconnected` is called when sending to a channel fails.
    """

    def __init__(
        self, fronts: Sequence[Channel], disconnected: Callable[[Channel, ChannelClosed], None]
    ) -> None:
        self._outboxes: dict[Channel, list[Message]] = {front: [] for front in fronts}
        self._disconnected = disconnected

    def __contains__(self, channel: Channel) -> bool:
        return channel in self._outboxes

    @property
    def fronts(self) -> list[Channel]:
        return list(self._outboxes)

    def remove(self, front: Channel) -> None:
        del self._outboxes[front]

    def stage(self, front: Channel, message: Message) -> None:
        outbox = self._outboxes.get(front)
        if outbox is not None:
            outbox.append(message)

    def stage_for_all(self, message: Message) -> None:
        for outbox in self._outboxes.values():
            outbox.append(message)

    def discard_and_send(self, message: Message) -> None:
        """Discard everything staged and send this message to all fronts at once."""
        for front in self._outboxes:
            self._outboxes[front] = [message]
        self.flush()

    def flush(self) -> None:
        for front, outbox in list(self._outboxes.items()):
            if outbox:
                self._outboxes[front] = []
                self.send(front, outbox)

    def send(self, channel: Channel, messages: Sequence[Message]) -> None:
        """Send at once, ahead of what is staged."""
        try:
            channel.send(messages)
        except ChannelClosed as error:
            self._disconnected(channel, error)
