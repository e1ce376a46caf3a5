"""Keys, and tokens made with them by hand, for the tests of authentication."""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import hmac
import json
from collections.abc import Callable, Coroutine
from typing import TypeVar

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
)
from jwt.algorithms import ECAlgorithm, HMACAlgorithm, OKPAlgorithm, RSAAlgorithm

from unisono.front.auth.keys import KeySourceError
from unisono.front.auth.sources import KeySource, SharedSecret
from unisono.front.auth.verify import Identity, Verifier
from unisono.protocol.errors import AuthFailed

T = TypeVar("T")
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
Claims = dict[str, object]

NOW_S = 1_700_000_000.0
SECRET = bytes(range(64))
FAMILY = {"RS256": "rsa", "PS256": "rsa", "ES256": "ec", "EdDSA": "ed"}


@functools.cache
def private_key(name: str) -> PrivateKey:
    """A real key pair per name; the part before the dash is its family."""
    match name.partition("-")[0]:
        case "rsa":
            return rsa.generate_private_key(public_exponent=65537, key_size=2048)
        case "ec":
            return ec.generate_private_key(ec.SECP256R1())
        case _:
            return ed25519.Ed25519PrivateKey.generate()


def pem(name: str) -> bytes:
    return private_key(name).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def jwk(name: str, kid: str | None = None, **members: object) -> Claims:
    public = private_key(name).public_key()
    match public:
        case rsa.RSAPublicKey():
            key = RSAAlgorithm.to_jwk(public, as_dict=True)
        case ec.EllipticCurvePublicKey():
            key = ECAlgorithm.to_jwk(public, as_dict=True)
        case _:
            key = OKPAlgorithm.to_jwk(public, as_dict=True)
    named: Claims = {} if kid is None else {"kid": kid}
    return {name: value for name, value in key.items() if name != "key_ops"} | named | members


def oct_jwk(secret: bytes, kid: str) -> Claims:
    return {**HMACAlgorithm.to_jwk(secret, as_dict=True), "kid": kid}


def key_set(*keys: Claims) -> bytes:
    return json.dumps({"keys": keys}).encode()


def claims(**changes: object) -> Claims:
    """Claims of a good token; `...` leaves one out."""
    base: Claims = {"client_id": "alice", "iat": NOW_S, "exp": NOW_S + 60} | changes
    return {name: value for name, value in base.items() if value is not ...}


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def raw_token(header: object, payload: object, secret: bytes = SECRET) -> str:
    """An HS256 token built by hand, for contents that a signing library refuses to write."""
    parts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in (header, payload)]
    signing_input = ".".join(b64(part) for part in parts)
    return signing_input + "." + b64(hmac.digest(secret, signing_input.encode(), hashlib.sha256))


def hs256(**changes: object) -> str:
    return raw_token({"alg": "HS256", "typ": "JWT"}, claims(**changes))


def signed(name: str, algorithm: str, kid: str | None = None, **changes: object) -> str:
    headers = None if kid is None else {"kid": kid}
    return jwt.encode(claims(**changes), private_key(name), algorithm=algorithm, headers=headers)


def verifier(keys: KeySource | None = None, **options: object) -> Verifier:
    return Verifier(keys or SharedSecret(SECRET), leeway_s=0.0, **options)  # type: ignore[arg-type]


def verify(
    token: str, using: Verifier | None = None, client_id: str = "alice", now_s: float = NOW_S
) -> Identity:
    return asyncio.run((using or verifier()).verify(token, client_id, now_s))


def refusal(token: str, using: Verifier | None = None, client_id: str = "alice", now_s: float = NOW_S) -> str:
    with pytest.raises(AuthFailed) as caught:
        verify(token, using, client_id, now_s)
    return str(caught.value)


def unusable(make: Callable[[], object]) -> str:
    with pytest.raises(KeySourceError) as caught:
        make()
    return str(caught.value)


def without_waiting(coroutine: Coroutine[object, object, T]) -> T:
    """Run to the end in one step: a coroutine that would wait for anything fails here."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise AssertionError("the coroutine waited")
