"""Where a page can end without dividing an atomic batch (EXT-13).

The log does not say which events were submitted as one atomic batch. Its events stand next to each other and have one
client_id and one time of commit, so a page that ends where one of these changes divides none.
"""

from __future__ import annotations

from collections.abc import Sequence

from unisono.store.port import Record


def records_before_open_batch(records: Sequence[Record]) -> int:
    """How many records of a page, after which others follow, to send: all but those that may be part of a batch which
    continues after it; all of them where fewer than half would be left."""
    if not records:
        return 0
    count, last = len(records), _submission(records[-1])
    while count > least_of(len(records)) and _submission(records[count - 1]) == last:
        count -= 1
    return count if _submission(records[count - 1]) != last else len(records)


def least_of(count: int) -> int:
    """The fewest events of a page of `count` that are worth sending without the others."""
    return (count + 1) // 2


def _submission(record: Record) -> tuple[str, int]:
    """What all events of one batch have in common."""
    return record.client_id, record.status_updated_at
