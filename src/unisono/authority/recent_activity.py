"""What the authority did last, for an operator: times of the newest groups, and refused items by their reason.

Kept in memory only and bounded. A group costs one entry; a refused item costs a lookup by its first error.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from typing import Final

import msgspec

from unisono.authority.judge import Reject
from unisono.display import shorten
from unisono.ipc.messages import Candidate, RefusedItem, Submit
from unisono.vocabulary import FieldError, JsonObject

GROUPS_KEPT: Final = 2_000
"""Groups whose times are remembered: some seconds of a busy server, hours of a quiet one."""

GROUPS_TOLD: Final = 500
"""Groups in one answer, which is made between two groups."""

REFUSALS_KEPT: Final = 100
"""Different reasons that are counted; the one that was not seen for longest goes first."""

EXAMPLE_EVERY_MS: Final = 1_000
"""A flood of refused items makes no more examples than this."""

ERRORS_KEPT: Final = 5
EXAMPLE_CHARS_MAX: Final = 1_000
MESSAGE_CHARS_MAX: Final = 200
NAMES_KEPT: Final = 8

_VARIABLE: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")
"""Parts of a field or a message that differ from item to item: quoted texts and numbers."""


class RecentGroup(msgspec.Struct, frozen=True, array_like=True):
    """One group with events: its ids, when its judging began, and the seconds before that, for judging, and until
    durable. `started_s` is when it was begun, by the machine's monotonic clock.
    """

    first: int
    last: int
    begun_ms: int
    begin_s: float
    judge_s: float
    commit_s: float
    started_s: float = 0.0


class RefusalCount(msgspec.Struct):
    """Refused items with the same reason, field and message, and one of them."""

    reason: str
    field: str
    message: str
    count: int
    first_ms: int
    last_ms: int
    example: JsonObject


class RecentActivity:
    """Filled by groups, read by admin commands between groups."""

    def __init__(self) -> None:
        self._groups: deque[RecentGroup] = deque(maxlen=GROUPS_KEPT)
        self._refusals: OrderedDict[tuple[str, str, str], RefusalCount] = OrderedDict()

    def note_group(self, times: RecentGroup) -> None:
        self._groups.append(times)

    def note_refusal(self, submit: Submit, item: Candidate | RefusedItem, why: Reject, now_ms: int) -> None:
        error = why.errors[0] if why.errors else FieldError("", "")
        key = (why.reason, _general(error.field), _general(error.message))
        known = self._refusals.get(key)
        if known is None:
            if len(self._refusals) >= REFUSALS_KEPT:
                self._refusals.popitem(last=False)
            known = self._refusals[key] = RefusalCount(*key, 0, now_ms, now_ms, {})
        self._refusals.move_to_end(key)
        if known.count == 0 or now_ms - known.last_ms >= EXAMPLE_EVERY_MS:
            known.example = _example(submit, item, why)
        known.count += 1
        known.last_ms = now_ms

    def groups(self, after: int) -> list[RecentGroup]:
        """The newest groups with an event after this id, oldest first."""
        found: list[RecentGroup] = []
        for group in reversed(self._groups):
            if group.last <= after or len(found) == GROUPS_TOLD:
                break
            found.append(group)
        return found[::-1]

    def refusals(self) -> list[RefusalCount]:
        """The newest first."""
        return list(reversed(self._refusals.values()))


def _general(text: str) -> str:
    return _VARIABLE.sub("…", text[:MESSAGE_CHARS_MAX])


def _example(submit: Submit, item: Candidate | RefusedItem, why: Reject) -> JsonObject:
    text = (
        item.event[: 4 * EXAMPLE_CHARS_MAX].decode("utf-8", "replace")
        if isinstance(item, Candidate)
        else None
    )
    return {
        "id": item.id,
        "client_id": submit.client_id,
        "author": submit.author[:EXAMPLE_CHARS_MAX],
        "profile": submit.profile,
        "partitions": list(item.partitions[:NAMES_KEPT]),
        "errors": [
            {
                "field": shorten(each.field, MESSAGE_CHARS_MAX),
                "message": shorten(each.message, MESSAGE_CHARS_MAX),
            }
            for each in why.errors[:ERRORS_KEPT]
        ],
        "event": None if text is None else shorten(text, EXAMPLE_CHARS_MAX),
    }
