"""Every bound and interval of a client, with the reason for its number."""

from __future__ import annotations

import msgspec


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How a client behaves; the defaults suit a desktop application on the open internet."""

    heartbeat_interval_s: float = 10.0
    """A third of the window that servers commonly keep."""

    dead_after_s: float = 25.0
    """A server from which nothing came for this long, though it was sent heartbeats, is taken for dead."""

    connect_timeout_s: float = 10.0
    """From the first packet to the end of the WebSocket handshake."""

    answer_timeout_s: float = 60.0
    """A request unanswered for so long ends the connection: a server may fold a long history before it answers."""

    renew_before_s: float = 30.0
    """So long before a token ends a new one is asked for, and a connection made with it takes over. A token that
    lives less than three times as long serves for two thirds of its life. 0: when the old one has ended."""

    backoff_base_s: float = 0.5
    """The first wait is chosen below this, each further one below twice the one before."""

    backoff_cap_s: float = 30.0
    """No wait is longer: a server that is back is found within half a minute."""

    stable_after_s: float = 10.0
    """A connection that lasted so long starts the waits from the beginning."""

    retry_after_s: float = 1.0
    """The wait after rate_limited when the server names none."""

    draft_retry_base_s: float = 60.0
    draft_retry_cap_s: float = 3600.0
    """When a draft that the server fails on is tried again: each try costs the connection, so ever more rarely."""

    page_limit: int = 1000
    """Events per page; the server reduces it to its own bounds."""

    buffer_events_max: int = 1000
    buffer_bytes_max: int = 16 * 1024 * 1024
    """Broadcasts buffered while a cycle runs; past either, they are dropped and another cycle fetches them."""

    tail_events_max: int = 100
    """Without ordered_delivery, live events above the cursor; so many are re-applied when one comes late."""

    snapshot_every: int = 1000
    """Events folded before a partition's state is stored again; larger states wait for more (`view/`)."""

    snapshots: bool = True
    """Start a partition from the server's snapshot where the model can go on from it (`sync/bootstrap.py`)."""

    message_bytes_max: int = 64 * 1024 * 1024
    """A larger message from the server ends the connection instead of filling the memory."""
