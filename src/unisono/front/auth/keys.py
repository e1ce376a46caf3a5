"""Verification keys, read from a secret, from PEM, from a JWK Set (AUTH-02).

Invariants
- A key carries the algorithms of its own family; no public key ever becomes an HMAC secret (RFC 8725).
- No part of a key is in an error text, a log line or a repr (AUTH-08).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import jwt
import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt.algorithms import ECAlgorithm, HMACAlgorithm, OKPAlgorithm, RSAAlgorithm

MIN_HMAC_SECRET_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}
"""A secret is at least as long as the hash (RFC 7518, 3.2): a shorter one can be guessed offline."""

ALGORITHMS = frozenset({*MIN_HMAC_SECRET_BYTES, "RS256", "PS256", "ES256", "EdDSA"})

MIN_RSA_BITS = 2048
"""Shorter moduli are within reach of factoring (NIST SP 800-131A)."""

MAX_KEY_FILE_BYTES = 256 * 1024
"""A key set of a hundred RSA keys is a fifth of this; more is not a key set."""


class KeySourceError(Exception):
    """The configured keys or algorithms cannot be used. The text is for the operator."""


PublicKey: TypeAlias = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey


@dataclass(frozen=True, slots=True)
class Key:
    """One verification key and the algorithms it may be used with; its repr shows no material."""

    algorithms: frozenset[str]
    material: bytes | PublicKey = field(repr=False)
    kid: str | None = None


def listed(algorithms: frozenset[str]) -> str:
    return ", ".join(sorted(algorithms))


def read_file(path: str | Path) -> bytes:
    """The bytes of a key file."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_KEY_FILE_BYTES + 1)
    except OSError as error:
        raise KeySourceError(f"cannot read {path}: {error.strerror or type(error).__name__}") from None
    if len(content) > MAX_KEY_FILE_BYTES:
        raise KeySourceError(f"{path} is larger than {MAX_KEY_FILE_BYTES} bytes, too large for a key file")
    return content


def read_secret(path: str | Path) -> bytes:
    """The bytes of a secret's file, without the one line break that editors leave at the end."""
    content = read_file(path)
    if content:
        # DER may end in the byte that is about to be cut off, and would then pass for a secret.
        _refuse_public_key(content, str(path))
    line_break = b"\r\n" if content.endswith(b"\r\n") else b"\n"
    return content.removesuffix(line_break)


def secret_key(secret: bytes, origin: str, kid: str | None = None) -> Key:
    """An HMAC secret. Its length decides which of HS256, HS384 and HS512 it may serve."""
    if not secret:
        raise KeySourceError(f"{origin}: the secret is empty")
    _refuse_public_key(secret, origin)
    algorithms = frozenset(name for name, size in MIN_HMAC_SECRET_BYTES.items() if len(secret) >= size)
    if not algorithms:
        least = min(MIN_HMAC_SECRET_BYTES.values())
        raise KeySourceError(f"{origin}: the secret has {len(secret)} bytes, at least {least} are needed")
    return Key(algorithms, secret, kid)


def pem_key(pem: bytes, origin: str) -> Key:
    """A public key in PEM: RSA, EC on P-256, or Ed25519."""
    if b"PRIVATE KEY-----" in pem:
        raise KeySourceError(f"{origin} holds a private key; the server needs the public key only")
    if b"BEGIN CERTIFICATE-----" in pem:
        raise KeySourceError(
            f"{origin} holds a certificate; extract its key with `openssl x509 -pubkey -noout`"
        )
    try:
        material: object = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise KeySourceError(f"{origin} is not a public key in PEM (-----BEGIN PUBLIC KEY-----)") from None
    return _public_key(material, origin)


def _refuse_public_key(secret: bytes, origin: str) -> None:
    """Refuse bytes that are a key others may know: PEM, DER, SSH, JWK, or the base64 of one of these."""
    try:
        unwrapped = base64.b64decode(b"".join(secret.split()), validate=True)
    except ValueError:
        unwrapped = b""
    try:
        for candidate in (secret, unwrapped or secret):
            HMACAlgorithm(HMACAlgorithm.SHA256).prepare_key(candidate)
    except jwt.InvalidKeyError:
        armoured = True
    else:
        armoured = b"-----BEGIN " in secret
    if armoured:
        raise KeySourceError(
            f"{origin} holds a public key, certificate or JWK, which is no shared secret (RFC 8725)"
        )


def _public_key(material: object, origin: str, kid: str | None = None) -> Key:
    match material:
        case RSAPublicKey():
            if material.key_size < MIN_RSA_BITS:
                raise KeySourceError(
                    f"{origin}: the RSA key has {material.key_size} bits, at least {MIN_RSA_BITS} are needed"
                )
            return Key(frozenset({"RS256", "PS256"}), material, kid)
        case EllipticCurvePublicKey() if isinstance(material.curve, SECP256R1):
            return Key(frozenset({"ES256"}), material, kid)
        case Ed25519PublicKey():
            return Key(frozenset({"EdDSA"}), material, kid)
        case _:
            raise KeySourceError(f"{origin}: the key must be RSA, EC on P-256, or Ed25519")


_JWK_FAMILIES: Mapping[
    object, tuple[type[RSAAlgorithm | ECAlgorithm | OKPAlgorithm | HMACAlgorithm], tuple[str, ...]]
] = {
    "RSA": (RSAAlgorithm, ("kty", "n", "e")),
    "EC": (ECAlgorithm, ("kty", "crv", "x", "y")),
    "OKP": (OKPAlgorithm, ("kty", "crv", "x")),
    "oct": (HMACAlgorithm, ("kty", "k")),
}
"""Per `kty` its reader and the members it needs; private members are left out before anything is read."""


def read_key_set(body: bytes, origin: str) -> tuple[Key, ...]:
    """The usable keys of a JWK Set. Others are skipped (RFC 7517, 5); a set without any is refused."""
    try:
        document: object = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise KeySourceError(f"{origin} is not JSON") from None
    entries: object = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise KeySourceError(f'{origin} is not a JWK Set: it needs an array "keys"')
    keys: list[Key] = []
    skipped: list[str] = []
    for index, entry in enumerate(entries):
        try:
            keys.append(_parse_jwk(entry, f"{origin}: keys[{index}]"))
        except KeySourceError as error:
            skipped.append(str(error))
    if not keys:
        raise KeySourceError(skipped[0] if skipped else f"{origin} holds no keys")
    return tuple(keys)


def _parse_jwk(jwk: object, origin: str) -> Key:
    if not isinstance(jwk, dict):
        raise KeySourceError(f"{origin} is not an object")
    kid, family = jwk.get("kid"), jwk.get("kty")
    if not (kid is None or isinstance(kid, str)):
        raise KeySourceError(f"{origin}: kid must be a string")
    operations = jwk.get("key_ops", ["verify"])
    if jwk.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        raise KeySourceError(f"{origin} is not for verifying signatures")
    if not isinstance(family, str) or family not in _JWK_FAMILIES:
        raise KeySourceError(f"{origin}: kty must be RSA, EC, OKP or oct")
    reader, members = _JWK_FAMILIES[family]
    try:
        material: object = reader.from_jwk({name: jwk[name] for name in members})
    except (jwt.PyJWTError, KeyError, TypeError, ValueError, UnsupportedAlgorithm):
        raise KeySourceError(f"{origin} is not a valid {family} key") from None
    key = (
        secret_key(material, origin, kid)
        if isinstance(material, bytes)
        else _public_key(material, origin, kid)
    )
    if "alg" not in jwk:
        return key
    algorithms = frozenset(name for name in key.algorithms if name == jwk["alg"])
    if not algorithms:
        raise KeySourceError(f"{origin}: alg does not fit the key, or is not one of {listed(ALGORITHMS)}")
    return Key(algorithms, key.material, kid)
