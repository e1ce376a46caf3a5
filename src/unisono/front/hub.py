"""Subscriptions: an index from partition to connections, and the broadcast of events over it.

Publishing an event costs in proportion to the connections that get it, not to those that exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from unisono.ipc.messages import EventCommitted
from unisono.protocol.codec import MESSAGE_FORMAT, with_author


def text_frame(payload: bytes) -> bytes:
    """A server's WebSocket text frame: never masked, so the same bytes for every receiver (RFC 6455)."""
    size = len(payload)
    if 126 <= size < 65536:
        return b"\x81\x7e%c%c%b" % (size >> 8, size & 0xFF, payload)
    if size < 126:
        return b"\x81%c%b" % (size, payload)
    return b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), payload)


def message_frame(kind: str, msg_id: str, timestamp: int, payload: bytes) -> bytes:
    """One message of the server as a whole frame."""
    message = MESSAGE_FORMAT % (kind.encode(), msg_id.encode(), timestamp, payload)
    size = len(message)
    if 126 <= size < 65536:  # as `text_frame`, for most
        return b"\x81\x7e%c%c%b" % (size >> 8, size & 0xFF, message)
    return text_frame(message)


class Subscriber(Protocol):
    """A connection, as the hub sees it."""

    number: int
    subscriptions: tuple[str, ...]

    @property
    def sees_authors(self) -> bool: ...

    @property
    def sees_presence(self) -> bool: ...

    @property
    def unsent_bytes(self) -> int: ...

    def send(self, frame: bytes) -> None: ...


class Hub:
    """The subscription index.

    Invariant: a connection is listed under partition P exactly while P is in its `subscriptions`.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._subscribers: dict[str, dict[int, Subscriber]] = {}

    def subscribe(self, subscriber: Subscriber, partitions: tuple[str, ...]) -> None:
        """Replace the whole set at once (SYNC-05); `partitions` is normalised."""
        before = set(subscriber.subscriptions)
        after = set(partitions)
        for name in before - after:
            group = self._subscribers[name]
            del group[subscriber.number]
            if not group:
                del self._subscribers[name]
        for name in after - before:
            self._subscribers.setdefault(name, {})[subscriber.number] = subscriber
        subscriber.subscriptions = partitions

    def count(self, partition: str) -> int:
        """How many connections subscribe to it."""
        return len(self._subscribers.get(partition, ()))

    def publish(self, committed: EventCommitted) -> int:
        """Send to every subscriber of any of its partitions, once each, never to its origin (BCAST-01, -02)."""
        partitions = committed.partitions
        if len(partitions) == 1 and partitions[0] not in self._subscribers:
            return 0  # as most events
        if not (receivers := self._receivers(partitions)):
            return 0
        name = f"b{committed.committed_id}"
        frame = message_frame("event_broadcast", name, self._now_ms(), committed.payload)
        if committed.author:
            return self._publish_with_author(committed, receivers, frame)
        sent = 0
        for subscriber in receivers:
            if subscriber.number != committed.origin:
                subscriber.send(frame)
                sent += 1
        return sent

    def _publish_with_author(
        self, committed: EventCommitted, receivers: Iterable[Subscriber], plain: bytes
    ) -> int:
        """As `publish`; those who asked for authors get another form of the event (EXT-03)."""
        full: bytes | None = None
        sent = 0
        for subscriber in receivers:
            if subscriber.number == committed.origin:
                continue
            if subscriber.sees_authors and full is None:
                payload = with_author(committed.payload, committed.author)
                name = f"b{committed.committed_id}"
                full = message_frame("event_broadcast", name, self._now_ms(), payload)
            subscriber.send(full if subscriber.sees_authors and full is not None else plain)
            sent += 1
        return sent

    def _receivers(self, partitions: tuple[str, ...]) -> Iterable[Subscriber]:
        subscribers = self._subscribers
        if len(partitions) == 1:
            alone = subscribers.get(partitions[0])
            return () if alone is None else list(alone.values())
        groups = [group for name in partitions if (group := subscribers.get(name))]
        if not groups:
            return ()
        if len(groups) == 1:
            return list(groups[0].values())
        merged: dict[int, Subscriber] = {}
        for group in groups:
            merged.update(group)
        return list(merged.values())

    def subscribers(self, partition: str) -> Iterable[Subscriber]:
        """The connections that are subscribed to a partition."""
        return list(self._subscribers.get(partition, {}).values())

    @property
    def partitions(self) -> int:
        """Number of partitions with at least one subscriber."""
        return len(self._subscribers)
