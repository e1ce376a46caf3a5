"""Timeouts of a shared log: every wait is bounded.

A node that dies leaves the head row locked until the server notices: at once when its socket closes, after
`lock_hold_s` when its machine vanished. Other nodes wait for `lock_wait_s`, which is longer.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Timeouts(msgspec.Struct, frozen=True):
    """In seconds."""

    connect_s: int = 5
    """For one host to answer; libpq's minimum is 2."""

    lock_hold_s: float = 5.0
    """From the start of a group to its commit; then the server ends the session and rolls the group back."""

    lock_wait_s: float = 10.0
    """For groups of other nodes: longer than `lock_hold_s`."""

    statement_s: float = 15.0
    """For one statement, including its wait for locks: a page or a large group needs tens of milliseconds."""

    peer_s: int = 10
    """For a silent peer, in both directions, by TCP keepalive and by unacknowledged data."""

    answer_s: float = 30.0
    """For the answer to a batch of statements: longer than all timeouts of the server."""


WHOLE_LOG: Final = Timeouts(statement_s=3600.0, answer_s=3700.0)
"""For a statement that reads every row."""
