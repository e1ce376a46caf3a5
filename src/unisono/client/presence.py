"""Who is in a partition now, and what this client says of itself there (extension `presence`).

Nothing of it is stored. What this client says is sent again before it expires and after each reconnect; of values
that are set in quick succession the last is sent. Offline nobody is there.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

import msgspec

from unisono.client.errors import ClientClosed, InvalidEvent
from unisono.client.view.feeds import Feed, newest
from unisono.protocol.canonical import NotCanonical, canonical
from unisono.protocol.client_codec import Connected, PresenceUpdate, presence_payload
from unisono.protocol.extensions import PRESENCE
from unisono.vocabulary import FieldError, Json

SEND_INTERVAL_S: Final = 0.1
"""Between two messages about one partition: a server passes them on about as often."""

SAY_AGAIN_SHARE: Final = 3
"""What is said is said again after this part of its time to live, so that a lost message or two do no harm."""

VALUE_BYTES_MAX: Final = 4096
"""No server takes more."""


class Present(msgspec.Struct, frozen=True):
    """Somebody who is there. `user_id` is the person behind the client, where the server knows it."""

    client_id: str
    value: Any
    user_id: str | None = None


class Roster(msgspec.Struct, frozen=True):
    """Everybody else who is in a partition, by client_id."""

    partition: str
    others: tuple[Present, ...] = ()


class PresenceBoard:
    """The presence of one client and of those around it. The engine's thread changes it; any thread reads rosters."""

    def __init__(
        self,
        client_id: str,
        send: Callable[[str, bytes], None],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._client_id = client_id
        self._send = send
        self._call_later = call_later
        self._own: dict[str, bytes] = {}
        self._due: dict[str, None] = {}
        self._scheduled = False
        self._others: dict[str, dict[str, Present]] = {}
        self._feeds: weakref.WeakSet[Feed[Roster]] = weakref.WeakSet()
        self._joining = threading.Lock()
        self._closed = False
        self.connected = False
        """Whether the server of this connection knows presence."""
        self.say_again_s = float("inf")
        self._rosters: dict[str, Roster] = {}

    # -- the connection ------------------------------------------------------------------------------------

    def opened(self, connected: Connected) -> None:
        """A connection is accepted: say everything again."""
        capabilities, limits = connected.capabilities, connected.limits
        self.connected = capabilities is not None and PRESENCE in capabilities.extensions
        ttl_ms = None if limits is None else limits.presence_ttl_ms
        self.say_again_s = float("inf") if not ttl_ms else ttl_ms / 1000 / SAY_AGAIN_SHARE
        self.say_again()

    def say_again(self) -> None:
        """Send what this client says, so that it does not expire."""
        for partition in self._own:
            self._say(partition)

    def lost(self) -> None:
        """The connection is gone: nobody is known to be there."""
        self.connected = False
        others, self._others = self._others, {}
        for partition in others:
            self._publish(partition)

    def take(self, update: PresenceUpdate) -> None:
        known = self._others.setdefault(update.partition, {})
        if update.complete:
            known.clear()
        for each in update.present:
            if each.client_id != self._client_id:
                known[each.client_id] = Present(each.client_id, each.value, each.user_id)
        for client_id in update.gone:
            known.pop(client_id, None)
        if not known:
            del self._others[update.partition]
        self._publish(update.partition)

    def close(self) -> None:
        self.lost()
        with self._joining:
            self._closed = True
            feeds = list(self._feeds)
        for feed in feeds:
            feed.close()

    # -- what this client says -----------------------------------------------------------------------------

    def set(self, partition: str, value: Json) -> None:
        """Say something, now and until it is taken back; None says nothing any more."""
        if value is None:
            if self._own.pop(partition, None) is not None:
                self._schedule(partition)
            return
        try:
            text = canonical(value)
        except NotCanonical as error:
            raise InvalidEvent([FieldError("value", error.reason)]) from None
        if len(text) > VALUE_BYTES_MAX:
            says = f"has {len(text)} bytes, at most {VALUE_BYTES_MAX} are allowed"
            raise InvalidEvent([FieldError("value", says)])
        self._own[partition] = text
        self._schedule(partition)

    def _schedule(self, partition: str) -> None:
        """Send it now, or with the next ones when something was sent a moment ago."""
        self._due[partition] = None
        if not self._scheduled:
            self._send_due()
            self._scheduled = True
            self._call_later(SEND_INTERVAL_S, self._next)

    def _next(self) -> None:
        self._scheduled = bool(self._due)
        if self._due:
            self._send_due()
            self._call_later(SEND_INTERVAL_S, self._next)

    def _send_due(self) -> None:
        due, self._due = self._due, {}
        for partition in due:
            self._say(partition)

    def _say(self, partition: str) -> None:
        if self.connected:
            self._send("presence", presence_payload(partition, self._own.get(partition)))

    # -- from any thread -----------------------------------------------------------------------------------

    def roster(self, partition: str) -> Roster:
        return self._rosters.get(partition, Roster(partition))

    def feed(self, partition: str) -> Feed[Roster]:
        feed = Feed[Roster](partition, newest)
        with self._joining:
            if self._closed:
                raise ClientClosed
            self._feeds.add(feed)
        return feed

    def _publish(self, partition: str) -> None:
        known = self._others.get(partition, {})
        roster = Roster(partition, tuple(known[client_id] for client_id in sorted(known)))
        if roster.others:
            self._rosters[partition] = roster
        else:
            self._rosters.pop(partition, None)
        with self._joining:
            feeds = list(self._feeds)
        for feed in feeds:
            feed.put(partition, roster)
