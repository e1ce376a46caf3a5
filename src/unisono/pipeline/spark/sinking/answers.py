"""Where a task submits to, and what the server rejected."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from unisono.pipeline.spark.sinking.items import SinkItem
from unisono.vocabulary import FieldError


class SinkTarget(msgspec.Struct, frozen=True):
    """The server a task submits to, and how."""

    url: str
    profile: str
    batch: int
    in_flight: int
    timeout_s: float


class Rejection(msgspec.Struct, frozen=True):
    """An event that was not committed, and why."""

    item: SinkItem
    reason: str
    errors: Sequence[FieldError] = ()

    def text(self) -> str:
        details = ", ".join(f"{error.field}: {error.message}" for error in self.errors)
        return f"{self.item.id!r} {self.reason}" + (f" ({details})" if details else "")
