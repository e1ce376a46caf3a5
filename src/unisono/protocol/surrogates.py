"""Lone surrogate escapes in submitted events, so that they refuse one item and not a whole request.

The decoder refuses a text with `"\\ud800"` anywhere in it. Inside an event that is a fault of that one event
(ORD-07), so the escape is masked with a noncharacter that the text does not otherwise contain, the message
is decoded, and the events get their own text back, which the canonical form then refuses one by one.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LONE = rb"u[dD][89a-fA-F][0-9a-fA-F]{2}"
# One match is everything up to and with the next lone surrogate, so the callback is called once for each of them.
_UP_TO_LONE = re.compile(
    rb"((?:[^\\]++|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\(?!" + _LONE + rb").?)*+)"
    rb"(\\" + _LONE + rb")?",
    re.DOTALL,
)
_NONCHARACTERS = range(0xFDD0, 0xFDF0)


class Masked(NamedTuple):
    """A text without lone surrogates, and what stands where they were."""

    text: bytes
    mask: str
    escapes: tuple[bytes, ...]

    def restored(self, part: bytes) -> bytes:
        """`part` of the text with escapes where the masks are (which surrogate it was no longer matters)."""
        return part.replace(self.mask.encode(), self.escapes[0])


def mask_lone_surrogates(data: bytes) -> Masked | None:
    """None when there are none, or when no mask is free."""
    mask = next((c for c in map(chr, _NONCHARACTERS) if not _present(data, c)), None)
    if mask is None:
        return None
    escapes: list[bytes] = []
    stand_in = mask.encode()

    def replace(match: re.Match[bytes]) -> bytes:
        skipped, lone = match.groups()
        if lone is None:
            return match.group(0)
        escapes.append(lone)
        return bytes(skipped + stand_in)

    text = _UP_TO_LONE.sub(replace, data)
    return Masked(text, mask, tuple(escapes)) if escapes else None


def _present(data: bytes, character: str) -> bool:
    return character.encode() in data or f"\\u{ord(character):04x}".encode() in data.lower()
