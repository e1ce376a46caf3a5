"""What every room shares: plain JSON, an error about one field, the identity of a log, what a URL begins with."""

from __future__ import annotations

import re
from typing import Final, TypeAlias

import msgspec

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""Any JSON value."""

JsonObject: TypeAlias = dict[str, Json]


URL_START: Final = re.compile(r"[A-Za-z][\w+.-]+:/")
"""Where a path of this machine is needed, such a text would become a relative one."""


class FieldError(msgspec.Struct, frozen=True):
    """One reason why an item is refused.

    `field` is a dot path relative to the submitted item, as in `event.payload.value.id` (SUBMIT-05).
    """

    field: str
    message: str


class LogIdentity(msgspec.Struct, frozen=True, array_like=True):
    """Which log, and which past of it (DUR-08).

    `log_id` is 32 hexadecimal digits, made with the log and kept by a move. `log_epoch` is 1 at first, and a larger
    number whenever the log's past may have changed. Where either is another, committed ids mean other events.
    """

    log_id: str
    log_epoch: int
