"""What a generator is asked to do, and what it answers."""

from __future__ import annotations

from typing import Literal

import msgspec

EVENT_BYTES = 400
"""An event with its id and partition, as it is submitted."""

PAGE_EVENTS = 1000
"""The largest page of the protocol."""

Work = Literal["submit", "read", "listen", "connect", "hold"]
Wire = Literal["unisono", "insieme", "hocuspocus", "nats", "streams", "umadb", "echo"]


class Client(msgspec.Struct, frozen=True):
    """One connection: who it is, and the partitions (projects, subjects, streams) it writes or reads."""

    name: str
    topics: list[str]
    token: str = ""


class Order(msgspec.Struct, frozen=True):
    """`run` makes the ids of events unique. `warm_s` passes before anything is counted."""

    work: Work
    wire: Wire
    host: str
    port: int
    clients: list[Client]
    run: str
    seconds: float
    warm_s: float = 0.5
    batch: int = 1
    items_max: int = 0
    """End when so many are answered, if that comes before the time; 0: the time alone counts."""
    source_address: str = ""
    """Connections of `connect` come from here, so that ports waiting after a close do not run out."""


class Counted(msgspec.Struct, frozen=True):
    """Items (events, deliveries, connections), and from request to answer of each, in microseconds."""

    items: int
    elapsed_s: float
    cpu_s: float
    latencies_us: list[int]
