"""Bounds of ids, and the names of clients: what a client_id may be (AUTH-03), and which one a token names."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

import msgspec

EVENT_ID_BYTES_MAX: Final = 128
"""Of an event's id in UTF-8 (SUBMIT-10)."""

CLIENT_ID_BYTES_MAX: Final = 256
"""UTF-8 bytes of a client_id: it stands in every event of its client, and in indexes."""


DERIVED_CLAIM: Final = "derived_client_ids"
"""The claim of a token that may be used under client_ids of its own: `alice` and `alice/…` (AUTH-09)."""


def is_derived(client_id: str, principal: str) -> bool:
    """Whether a client_id belongs to the client of a token that allows derived ones."""
    return client_id.startswith(f"{principal}/") and len(client_id) > len(principal) + 1


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


def client_id_of(token: str) -> str | None:
    """The client_id claim of a token, unverified: the server checks the signature. None when there is none."""
    claims = unverified_claims(token)
    return str(claims["client_id"]) if "client_id" in claims else None


def unverified_claims(token: str) -> dict[str, Any]:
    """The claims of a token whose signature nobody has checked; empty when it is none."""
    try:
        body = token.split(".")[1]
        claims = msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (IndexError, ValueError, binascii.Error, msgspec.DecodeError):
        return {}
    return claims if isinstance(claims, dict) else {}
