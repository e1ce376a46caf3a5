"""What a task is told by the server, and what it tells of it."""

from __future__ import annotations

from typing import Final

import msgspec

from unisono.pipeline.spark.sinking.items import SinkItem
from unisono.vocabulary import FieldError

MESSAGE_BYTES: Final = 1 << 20
"""What a server takes that does not say (LIM-01)."""


class SinkTarget(msgspec.Struct, frozen=True):
    """Whom to speak to, and how."""

    url: str
    profile: str
    batch: int
    in_flight: int
    timeout_s: float


class Rejection(msgspec.Struct, frozen=True):
    """An event that was not committed, and why."""

    item: SinkItem
    reason: str
    errors: list[FieldError] = []

    def text(self) -> str:
        told = ", ".join(f"{error.field}: {error.message}" for error in self.errors)
        return f"{self.item.id!r} {self.reason}" + (f" ({told})" if told else "")


class SinkResult(msgspec.Struct):
    id: str
    status: str
    reason: str = ""
    errors: list[FieldError] = []


class ServerLimits(msgspec.Struct):
    max_batch_size: int = 100
    max_message_bytes: int = MESSAGE_BYTES
    max_in_flight_drafts: int = 100


class Payload(msgspec.Struct):
    """What is looked at in any answer."""

    results: list[SinkResult] = []
    code: str = ""
    message: str = ""
    retry_after_ms: int = 0
    limits: ServerLimits = msgspec.field(default_factory=ServerLimits)


class Message(msgspec.Struct):
    type: str
    payload: Payload


decode: Final = msgspec.json.Decoder(Message).decode
