"""What a connection needs from its front: the services that all connections share, and their owner."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from unisono.config import Settings
from unisono.front.access import Access
from unisono.front.auth.verify import Verifier
from unisono.front.connected_answers import ConnectedAnswers
from unisono.front.hub import Hub
from unisono.front.presence import PresenceRooms
from unisono.front.requests import FrontRequests
from unisono.front.revocations import Revocations
from unisono.front.submit_traces import SubmitTraces
from unisono.front.timers import Timers
from unisono.ipc.messages import Offer
from unisono.ipc.stats import Counters
from unisono.ipc.tracing import open_tracer

if TYPE_CHECKING:
    from unisono.front.connection import ClientConnection


def now_ms() -> int:
    """The server's clock in milliseconds (ENV-07)."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class FrontServices:
    """One of each for all connections of a front."""

    settings: Settings
    loop: asyncio.AbstractEventLoop
    verifier: Verifier
    access: Access
    revocations: Revocations
    timers: Timers
    hub: Hub
    presence: PresenceRooms
    requests: FrontRequests
    counters: Counters
    connected_answers: ConnectedAnswers

    @classmethod
    def create(cls, settings: Settings, verifier: Verifier, access: Access) -> FrontServices:
        """For the event loop that is running."""
        loop = asyncio.get_running_loop()
        hub, timers, counters = Hub(now_ms), Timers(loop), Counters()
        node = settings.node_name or socket.gethostname()
        tracer = open_tracer(settings.otel_endpoint, settings.otel_sample, node)
        requests = FrontRequests(settings, loop, None if tracer is None else SubmitTraces(tracer))
        return cls(
            settings=settings,
            loop=loop,
            verifier=verifier,
            access=access,
            revocations=Revocations(),
            timers=timers,
            hub=hub,
            presence=PresenceRooms(hub, timers, counters, loop.time, now_ms, requests.share_presence),
            requests=requests,
            counters=counters,
            connected_answers=ConnectedAnswers(settings),
        )

    def count_all(self) -> bytes:
        """All counters of the front, with how much there is of each thing now."""
        requests, counters = self.requests, self.counters
        counters.reset("messages_in", requests.messages_in)
        counters.set("in_flight_items", requests.queued.items)
        counters.set("in_flight_bytes", requests.queued.bytes)
        counters.set("sync_queue_bytes", requests.sync_bytes)
        counters.set("subscribed_partitions", self.hub.partitions)
        counters.set("presences", self.presence.count)
        return counters.dump()


class ConnectionOwner(Protocol):
    """The front, as its connections see it."""

    @property
    def offer(self) -> Offer | None:
        """What the authority accepts; None while the log is unavailable."""
        ...

    @property
    def draining(self) -> bool: ...

    def admit(self, connection: ClientConnection) -> bool:
        """Register a connection; False when there are too many."""
        ...

    def forget(self, connection: ClientConnection) -> None: ...

    def replace(self, number: int) -> None:
        """Close a connection: a newer one has its client_id."""
        ...

    def flush_later(self, connection: ClientConnection) -> None:
        """Call `flush` of this connection at the end of this pass of the event loop."""
        ...

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]: ...
