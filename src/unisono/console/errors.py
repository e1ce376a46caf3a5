"""Why the console gives no answer."""

from __future__ import annotations


class ConsoleRefused(Exception):
    """The request cannot be answered; the text says why, for the person who asked."""


class ConsoleBusy(Exception):
    """Too much is being asked at once; the same request may succeed a moment later."""
