"""Why a value or a text has no canonical form."""

from __future__ import annotations

from typing import Final

from unisono.display import shorten

_QUOTED_MAX: Final = 40  # characters of a literal repeated in a message: enough to recognise it


class NotCanonical(ValueError):
    """A value that RFC 8785 cannot represent; `field` is its dot path where known, else empty."""

    def __init__(self, reason: str, field: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.field = field

    def below(self, step: str | int) -> NotCanonical:
        """The same complaint, seen from the container that holds the value at `step`."""
        self.field = f"{step}.{self.field}" if self.field else str(step)
        return self


def too_long(size: int, bytes_max: int) -> NotCanonical:
    return NotCanonical(f"has {size} bytes in canonical form, at most {bytes_max} are allowed")


def too_deep() -> NotCanonical:
    return NotCanonical("arrays and objects are nested too deeply")


def lone_surrogate() -> NotCanonical:
    return NotCanonical("a string holds a lone surrogate, which UTF-8 cannot carry")


def key_twice(field: str = "") -> NotCanonical:
    return NotCanonical("a key appears twice in one object", field)


def number_too_large(literal: str) -> NotCanonical:
    return NotCanonical(f"the number {shorten(literal, _QUOTED_MAX)} is too large for an IEEE double")


def number_too_small(literal: str) -> NotCanonical:
    return NotCanonical(f"the number {shorten(literal, _QUOTED_MAX)} is too small for an IEEE double")


def number_changed(literal: str, becomes: str) -> NotCanonical:
    return NotCanonical(
        f"the number {shorten(literal, _QUOTED_MAX)} does not survive as an IEEE double: it would become {becomes}"
    )
