"""Messages as a client writes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from unisono.protocol.codec import decode
from unisono.protocol.errors import BadRequest

ITEM = {"id": "e1", "partitions": ["p"], "event": {"type": "set"}}
PAYLOADS: dict[str, Any] = {
    "connect": {"token": "t", "client_id": "c"},
    "heartbeat": {},
    "disconnect": {},
    "submit_event": ITEM,
    "submit_events": {"events": [ITEM]},
    "sync": {"partitions": ["p"], "since_committed_id": 0},
}


def message(kind: str = "heartbeat", payload: Any = None, **changes: Any) -> dict[str, Any]:
    """A good envelope; `...` leaves a field out."""
    whole = {
        "type": kind,
        "msg_id": "m1",
        "timestamp": 1738451200000,
        "protocol_version": "1.0",
        "payload": payload if payload is not None else PAYLOADS.get(kind, {}),
    } | changes
    return {name: value for name, value in whole.items() if value is not ...}


def wire(kind: str = "heartbeat", payload: Any = None, **changes: Any) -> bytes:
    return json.dumps(message(kind, payload, **changes)).encode()


def refused(data: bytes) -> str:
    with pytest.raises(BadRequest) as caught:
        decode(data)
    return caught.value.message
