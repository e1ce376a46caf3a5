"""Where a page can end without dividing an atomic batch (EXT-13).

The log does not say which events were submitted as one atomic batch. Its events stand next to each other and have one
client_id and one time of commit, so a page that ends where one of these changes divides none.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Submission(msgspec.Struct, frozen=True):
    """Of an event in wire form: what all events of one batch have in common."""

    client_id: str
    status_updated_at: int


_decode = msgspec.json.Decoder(Submission).decode


def events_before_open_batch(events: Sequence[bytes]) -> int:
    """How many events of a page, after which others follow, to send: all but those that may be part of a batch which
    continues after it; all of them where fewer than half would be left."""
    if not events:
        return 0
    least = (len(events) + 1) // 2
    last, count = _decode(events[-1]), len(events) - 1
    while count > least and _decode(events[count - 1]) == last:
        count -= 1
    return count if count and _decode(events[count - 1]) != last else len(events)
