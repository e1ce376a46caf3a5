"""Words every room shares: plain JSON, and one complaint about one field."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""Any value that JSON can hold."""

JsonObject: TypeAlias = dict[str, Json]


class FieldError(msgspec.Struct, frozen=True):
    """One reason why an item is refused.

    `field` is a dot path relative to the submitted item, as in `event.payload.value.id` (SUBMIT-05).
    """

    field: str
    message: str
