"""Spans of time as people write them: 30d, 12h, 90m, 45s."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final

import click

_UNITS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000}
_MOST_DAYS: Final = 365_000
"""A thousand years: longer ones are mistakes, and moments before them have no date."""

_SPAN: Final = re.compile(r"^(\d+(?:\.\d+)?)([dhms])$")


class DurationType(click.ParamType[int]):
    """Milliseconds, from a number and its unit."""

    name = "span"

    def __init__(self, least_ms: int = 0) -> None:
        self._least_ms = least_ms

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _SPAN.match(value)
        if match is None:
            self.fail(f"{value!r} is no span of time: write 30d, 12h, 90m or 45s", param, ctx)
        span = int(Decimal(match[1]) * _UNITS_MS[match[2]])
        if span < self._least_ms:
            self.fail(f"{value} is too short: {self._least_ms / 1_000:g}s is the least", param, ctx)
        if span > _MOST_DAYS * _UNITS_MS["d"]:
            self.fail(f"{value} is too long: {_MOST_DAYS}d is the most", param, ctx)
        return span
