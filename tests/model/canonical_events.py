"""Canonical events in few words."""

from __future__ import annotations

from unisono.vocabulary import Json, JsonObject


def event(schema: str = "order", data: Json = None, **payload: Json) -> JsonObject:
    return {"type": "event", "payload": {"schema": schema, "data": data, **payload}}
