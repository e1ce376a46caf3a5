"""The names of clients: what a client_id may be, wherever one comes in (AUTH-03)."""

from __future__ import annotations

from typing import Final

CLIENT_ID_BYTES_MAX: Final = 256
"""UTF-8 bytes of a client_id: it stands in every event of its client, and in indexes."""


def client_id_fault(client_id: str) -> str | None:
    """What is wrong with it, to follow the name of whatever holds it; None when nothing is."""
    if not client_id:
        return "must not be empty"
    if len(client_id) <= CLIENT_ID_BYTES_MAX:
        try:
            if len(client_id.encode()) <= CLIENT_ID_BYTES_MAX:
                return None
        except UnicodeEncodeError:
            return "must be valid Unicode"
    return f"has more than {CLIENT_ID_BYTES_MAX} bytes"
