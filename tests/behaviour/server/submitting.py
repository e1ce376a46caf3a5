"""Canonical events, and what a rejection names."""

from __future__ import annotations

from typing import Any


def event(schema: str, data: Any, **more: Any) -> dict[str, Any]:
    return {"type": "event", "payload": {"schema": schema, "data": data, **more}}


def fields(result: dict[str, Any]) -> list[str]:
    """The fields a rejected item names."""
    assert result["status"] == "rejected", result
    assert result["reason"] == "validation_failed"
    assert all(error["message"] for error in result["errors"])
    return [error["field"] for error in result["errors"]]
