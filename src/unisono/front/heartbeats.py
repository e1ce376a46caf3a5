"""How often a client is to give a sign of life (HB-02)."""

from __future__ import annotations

from typing import Final

PING_FRAME: Final = b"\x89\x00"
"""A WebSocket ping without content."""


def ping_every(timeout_s: float) -> float:
    """So often a client is pinged, and at most so often it should send a heartbeat: 10 s of 30."""
    return timeout_s / 3


def missed(timeout_s: float) -> str:
    """The reason of a close, with what to do about it."""
    often, seldom = ping_every(timeout_s), timeout_s * 5 / 6
    return f"no heartbeat for {_s(timeout_s)} s; send heartbeat every {_s(often)} to {_s(seldom)} s"


def _s(seconds: float) -> str:
    return f"{round(seconds, 2):.12g}"
