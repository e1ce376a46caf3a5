"""Presence: who is in a partition now, and what each says of itself; never in the log (EXT-05 to EXT-09).

A front holds the presences of all fronts and nodes, the last value of each client. Changes are collected for a tenth
of a second; then every subscriber gets them in one message, encoded once for all. A subscriber that is behind gets
nothing until it has caught up, and then the state of that moment: newest values only, and no queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import msgspec

from unisono.front.hub import Hub, text_frame
from unisono.front.timers import Timer, Timers
from unisono.ipc.messages import PresenceChange
from unisono.ipc.stats import Counters
from unisono.protocol.codec import encode, encode_payload

INTERVAL_S: Final = 0.1
"""Between two messages about one partition: a cursor moves smoothly, and a crowd costs ten messages a second each."""

MAX_PRESENCES: Final = 100_000
"""Presences of all partitions that one front holds, some hundred bytes each beside their values; more are dropped."""

MAX_PARTITION_PRESENCES: Final = 1_000
"""Presences in one partition: its subscribers get all of them in one message."""

MAX_OWN_PARTITIONS: Final = 16
"""Partitions in which one connection can be present."""

MAX_BACKLOG_BYTES: Final = 64 * 1024
"""Unsent bytes of a connection above which it gets no presence until it has caught up."""


class PresenceListener(Protocol):
    """A connection, as far as presence goes."""

    number: int

    @property
    def sees_presence(self) -> bool: ...

    @property
    def unsent_bytes(self) -> int: ...

    def send(self, frame: bytes) -> None: ...


class PresentClient(msgspec.Struct):
    """What one client says of itself in one partition. `owner` is the connection that said it, on whichever node."""

    owner: str
    user_id: str | None
    value: bytes
    expires_at: float
    timer: Timer | None = None


class Room(msgspec.Struct):
    """One partition: who is present, what changed since the last message, and who is behind."""

    present: dict[str, PresentClient] = msgspec.field(default_factory=dict)
    changed: dict[str, None] = msgspec.field(default_factory=dict)
    behind: dict[int, PresenceListener] = msgspec.field(default_factory=dict)


class PresenceRooms:
    """The presences of all partitions with any.

    Invariants: `count` is the sum of all rooms' presences; a room is there while somebody is present, or something is
    to be told; every presence has a timer, which ends it.
    """

    def __init__(
        self,
        hub: Hub,
        timers: Timers,
        counters: Counters,
        now: Callable[[], float],
        now_ms: Callable[[], int],
        share: Callable[[Sequence[PresenceChange]], None],
    ) -> None:
        """`share` sends changes of this front to the others."""
        self.count = 0
        self._hub = hub
        self._timers = timers
        self._counters = counters
        self._now = now
        self._now_ms = now_ms
        self._share = share
        self._rooms: dict[str, Room] = {}
        self._own: dict[tuple[str, str], PresenceChange] = {}
        self._pending: dict[str, None] = {}
        self._ticking = False
        self._messages = 0

    def room_for(self, partition: str, client_id: str) -> bool:
        """Whether a client can be present; False when the partition, or this front, is full."""
        room = self._rooms.get(partition)
        if room is not None and client_id in room.present:
            return True
        full = room is not None and len(room.present) >= MAX_PARTITION_PRESENCES
        return not full and self.count < MAX_PRESENCES

    def says(self, owner: str, client_id: str, partition: str) -> bool:
        """Whether what a connection said for its client in a partition is still there."""
        room = self._rooms.get(partition)
        known = None if room is None else room.present.get(client_id)
        return known is not None and known.owner == owner

    def change(self, change: PresenceChange) -> None:
        """A change by a connection of this front; the others are told with the next message."""
        if self._apply(change):
            self._own[change.partition, change.client_id] = change
            self._arm()

    def take(self, changes: Iterable[PresenceChange]) -> None:
        """Changes of other fronts and nodes; what there is no room for is dropped and counted."""
        for change in changes:
            if change.value is not None and not self.room_for(change.partition, change.client_id):
                self._counters.add("presence_dropped")
            else:
                self._apply(change)

    def subscribed(self, listener: PresenceListener, partitions: Iterable[str]) -> None:
        """The listener gets everything there is in these partitions, with the next message."""
        for partition in partitions:
            room = self._rooms.get(partition)
            if room is not None and room.present:
                room.behind[listener.number] = listener
                self._tell(partition)

    def forget(self, number: int, partitions: Iterable[str]) -> None:
        """A connection no longer listens to these partitions."""
        for partition in partitions:
            room = self._rooms.get(partition)
            if room is not None:
                room.behind.pop(number, None)

    def _apply(self, change: PresenceChange) -> bool:
        """False when nothing changes: somebody else speaks for this client by now, or it was not there."""
        room = self._rooms.get(change.partition)
        known = None if room is None else room.present.get(change.client_id)
        if change.value is None:
            if room is None or known is None or known.owner != change.owner:
                return False
            self._remove(room, change.client_id, known)
        else:
            room = self._rooms.setdefault(change.partition, Room())
            expires_at = self._now() + change.ttl_s
            if known is None:
                known = room.present[change.client_id] = PresentClient(
                    change.owner, change.user_id, change.value, expires_at
                )
                self.count += 1
                known.timer = self._timers.at(
                    expires_at, self._expiring(change.partition, change.client_id, known)
                )
            else:
                self._expire_at(known, change, expires_at)
                if (known.owner, known.value) == (change.owner, change.value):
                    return True  # said again, to stay
            known.owner, known.user_id, known.value = change.owner, change.user_id, change.value
        room.changed[change.client_id] = None
        self._tell(change.partition)
        return True

    def _remove(self, room: Room, client_id: str, presence: PresentClient) -> None:
        del room.present[client_id]
        self.count -= 1
        if presence.timer is not None:
            self._timers.cancel(presence.timer)
            presence.timer = None

    def _expire_at(self, known: PresentClient, change: PresenceChange, expires_at: float) -> None:
        """Its timer follows an end that is put off by itself, when it fires; one that comes sooner has a new one."""
        if expires_at < known.expires_at and known.timer is not None:
            self._timers.cancel(known.timer)
            known.timer = self._timers.at(
                expires_at, self._expiring(change.partition, change.client_id, known)
            )
        known.expires_at = expires_at

    def _expiring(
        self, partition: str, client_id: str, presence: PresentClient
    ) -> Callable[[float], float | None]:
        def due(now: float) -> float | None:
            if presence.expires_at > now:
                return presence.expires_at
            room = self._rooms.get(partition)
            if room is not None and room.present.get(client_id) is presence:
                presence.timer = None
                self._remove(room, client_id, presence)
                room.changed[client_id] = None
                self._tell(partition)
            return None

        return due

    # -- sending -------------------------------------------------------------------------------------------

    def _tell(self, partition: str) -> None:
        self._pending[partition] = None
        self._arm()

    def _arm(self) -> None:
        if not self._ticking:
            self._ticking = True
            self._timers.at(self._now() + INTERVAL_S, self._tick)

    def _tick(self, now: float) -> float | None:
        """Send what changed; again after INTERVAL_S while somebody is behind."""
        own, self._own = self._own, {}
        if own:
            self._share(tuple(own.values()))
        pending, self._pending = self._pending, {}
        for partition in pending:
            room = self._rooms[partition]
            self._send(partition, room)
            if room.behind:
                self._pending[partition] = None
            elif not room.present:
                del self._rooms[partition]
        self._ticking = bool(self._pending)
        return now + INTERVAL_S if self._ticking else None

    def _send(self, partition: str, room: Room) -> None:
        changed, room.changed = room.changed, {}
        behind, room.behind = room.behind, {}
        frame: bytes | None = None
        for listener in self._hub.subscribers(partition) if changed else ():
            if not listener.sees_presence or listener.number in behind:
                continue
            if listener.unsent_bytes > MAX_BACKLOG_BYTES:
                room.behind[listener.number] = listener
                continue
            frame = frame or self._frame(partition, room, changed, complete=False)
            listener.send(frame)
            self._counters.add("presence_messages")
        whole: bytes | None = None
        for late in behind.values():
            if late.unsent_bytes > MAX_BACKLOG_BYTES:
                room.behind[late.number] = late
                continue
            whole = whole or self._frame(partition, room, room.present, complete=True)
            late.send(whole)
            self._counters.add("presence_messages")

    def _frame(self, partition: str, room: Room, clients: Iterable[str], *, complete: bool) -> bytes:
        present = [
            b'{"client_id":%b%b,"value":%b}'
            % (
                encode_payload(client_id),
                b"" if known.user_id is None else b',"user_id":' + encode_payload(known.user_id),
                known.value,
            )
            for client_id in clients
            if (known := room.present.get(client_id)) is not None
        ]
        gone = [client_id for client_id in clients if client_id not in room.present]
        payload = b'{"partition":%b,"complete":%b,"present":[%b],"gone":%b}' % (
            encode_payload(partition),
            b"true" if complete else b"false",
            b",".join(present),
            encode_payload(gone),
        )
        self._messages += 1
        return text_frame(encode("presence_update", f"p{self._messages}", self._now_ms(), payload))
