"""Takes a signed JWT apart, and verifies its signature.

Invariant: a token has one spelling. Another text with the same bytes is not that token.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

import msgspec
from jwt.algorithms import get_default_algorithms

from unisono.front.auth.keys import ALGORITHMS, Key
from unisono.front.unique_names import unique_names
from unisono.protocol.errors import AuthFailed

_decode_unique = json.JSONDecoder(object_pairs_hook=unique_names).decode
_ALGORITHMS = {name: each for name, each in get_default_algorithms().items() if name in ALGORITHMS}


class SignedToken(msgspec.Struct, frozen=True):
    """The parts of a token, not verified yet."""

    algorithm: str
    kid: str | None
    content: bytes
    payload: bytes
    signature: bytes


def parse_token(token: str) -> SignedToken:
    try:
        first, payload, signature = map(_segment, token.split("."))
        header = _json_object(first)
    except ValueError:
        raise AuthFailed("the token is not a JWT") from None
    kid, algorithm = header.get("kid"), header.get("alg")
    if not isinstance(algorithm, str) or not (kid is None or isinstance(kid, str)):
        raise AuthFailed("the token's header is not valid")
    if (
        "crit" in header or "b64" in header
    ):  # an extension that whoever does not know it must not ignore (RFC 7515)
        raise AuthFailed("the token's header has an extension that is not known here")
    return SignedToken(algorithm, kid, token.rpartition(".")[0].encode(), payload, signature)


def _segment(text: str) -> bytes:
    """The bytes of one part of a token, in the one spelling they have (RFC 7515, 2); ValueError for any other.

    The library skips characters outside of the alphabet, so that a signature has many spellings.
    """
    decoded = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if base64.urlsafe_b64encode(decoded).rstrip(b"=") != text.encode("ascii"):
        raise ValueError("not base64url without padding")
    return decoded


def signed_claims(signed: SignedToken, key: Key) -> Mapping[str, object]:
    """`key` serves the algorithm of the token: its source has compared them."""
    if not _ALGORITHMS[signed.algorithm].verify(signed.content, key.material, signed.signature):
        raise AuthFailed("the token's signature is not valid")
    try:
        return _json_object(signed.payload)
    except ValueError:
        raise AuthFailed("the token's claims are not a JSON object with every name once") from None


def _json_object(data: bytes) -> Mapping[str, object]:
    """A JSON object without a name twice: its issuer and this server might read two different ones (RFC 7519, 4)."""
    try:
        value: object = msgspec.json.decode(data)  # stricter than what follows
        _decode_unique(data.decode())
    except (msgspec.MsgspecError, RecursionError):
        raise ValueError("not JSON") from None
    if not isinstance(value, dict):
        raise ValueError("not an object")  # noqa: TRY004
    return value
