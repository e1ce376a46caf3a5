"""Takes the mask off the payload of a client's frame (RFC 6455, 5.3)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final


@cache
def _xor_table(byte: int) -> bytes:
    return bytes(other ^ byte for other in range(256))


def unmask_slowly(mask: bytes, payload: bytearray) -> None:
    """Without compiled code: each fourth byte has the same byte of the mask."""
    for at, byte in enumerate(mask):
        payload[at::4] = payload[at::4].translate(_xor_table(byte))


def _compiled() -> Callable[[bytes, bytearray], None] | None:
    """That of a library which the server needs anyway. It is not promised, so it is tried before it is trusted."""
    try:
        from aiohttp._websocket.helpers import websocket_mask  # it may be gone in another version

        for size in (0, 1, 3, 4, 9, 125):
            found, wanted = bytearray(range(size)), bytearray(range(size))
            websocket_mask(b"\x01\x80\xff\x37", found)
            unmask_slowly(b"\x01\x80\xff\x37", wanted)
            if found != wanted:
                return None
    except Exception:
        return None
    else:
        return websocket_mask


unmask: Final = _compiled() or unmask_slowly
"""In place; `mask` has four bytes."""
