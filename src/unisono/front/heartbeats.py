"""Heartbeat intervals (HB-02)."""

from __future__ import annotations

from typing import Final

PING_FRAME: Final = b"\x89\x00"
"""A WebSocket ping without content."""


def ping_every(timeout_s: float) -> float:
    """Interval of pings, and the shortest interval of heartbeats that is useful: 10 s of 30."""
    return timeout_s / 3


def missed(timeout_s: float) -> str:
    """The reason of a close for a missed heartbeat, with the interval to use."""
    often, seldom = ping_every(timeout_s), timeout_s * 5 / 6
    return f"no heartbeat for {_s(timeout_s)} s; send heartbeat every {_s(often)} to {_s(seldom)} s"


def _s(seconds: float) -> str:
    return f"{round(seconds, 2):.12g}"
