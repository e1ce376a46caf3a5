"""How long is waited for a shared log: every wait has an end.

A node that dies leaves the head row locked until the server notices: at once when its socket closes, after
`lock_hold_s` when its machine vanished. Others wait `lock_wait_s`, which is longer.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Timeouts(msgspec.Struct, frozen=True):
    """How long to wait for what, in seconds."""

    connect_s: int = 5
    """For one host to answer; libpq's least is 2."""

    lock_hold_s: float = 5.0
    """From a group's opening to its commit; then the server ends the session and the group with it."""

    lock_wait_s: float = 10.0
    """For other nodes' groups: longer than they may last."""

    statement_s: float = 15.0
    """For one statement, its waiting for locks included: a page or a large group needs tens of milliseconds."""

    peer_s: int = 10
    """For a silent peer, in both directions, by TCP keepalive and by unacknowledged data."""

    answer_s: float = 30.0
    """For the answer to a batch of statements, whatever keeps the server: longer than all it may wait for."""


WHOLE_LOG: Final = Timeouts(statement_s=3600.0, answer_s=3700.0)
"""For a statement that looks at every row."""
