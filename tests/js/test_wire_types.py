"""The message types of the JavaScript client are those of the Python definitions."""

from __future__ import annotations

from tests.js.wire_types import FILE, text


def test_the_generated_types_are_up_to_date() -> None:
    assert FILE.read_text(encoding="utf-8") == text(), "run: python -m tests.js.wire_types"
