"""Where verification keys come from: a shared secret, a PEM file, a JWKS file or URL (AUTH-02).

Invariants
- A key carries the algorithms of its own family; no public key ever becomes an HMAC secret (RFC 8725).
- Nothing of a key is in an error text, a log line or a repr (AUTH-08).
- Time is an argument. Nothing here reads a clock.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

import aiohttp
import jwt
import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt.algorithms import ECAlgorithm, HMACAlgorithm, OKPAlgorithm, RSAAlgorithm

from unisono.protocol.errors import AuthFailed

log = logging.getLogger(__name__)

HMAC_SECRET_BYTES_MIN = {"HS256": 32, "HS384": 48, "HS512": 64}
"""A secret at least as long as the hash (RFC 7518, 3.2): a shorter one can be guessed off line."""

ALGORITHMS = frozenset({*HMAC_SECRET_BYTES_MIN, "RS256", "PS256", "ES256", "EdDSA"})

RSA_BITS_MIN = 2048
"""Shorter moduli are within reach of factoring (NIST SP 800-131A)."""

KEY_FILE_BYTES_MAX = 256 * 1024
"""A key set of a hundred RSA keys is a fifth of this; more is not a key set."""

URL_TIMEOUT_S = 5.0
"""Shorter than any handshake window, so that a hanging key host answers as `auth_failed`, not as a hang."""

URL_REFRESH_MIN_S = 10.0
"""How soon an unknown key id may ask the URL again: garbage ids cost the host six requests a minute."""

URL_AGE_MAX_S = 600.0
"""How long a key that its host has withdrawn is still honoured."""

FILE_REFRESH_MIN_S = 1.0
FILE_AGE_MAX_S = 60.0
"""As for the URL; reading a local file again is cheap."""


class KeySourceError(Exception):
    """The configured keys or algorithms cannot be used. The text is for the operator."""


PublicKey: TypeAlias = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey


@dataclass(frozen=True, slots=True)
class Key:
    """One verification key and the algorithms it may be used with; its repr shows no material."""

    algorithms: frozenset[str]
    material: bytes | PublicKey = field(repr=False)
    kid: str | None = None


class KeySource(ABC):
    """Where verification keys come from."""

    @property
    @abstractmethod
    def algorithms(self) -> frozenset[str]:
        """Every algorithm that a key of this source serves, as far as they are known now."""

    @abstractmethod
    async def find(self, kid: str | None, algorithm: str, now_s: float) -> Key:
        """The key a token names, or `AuthFailed`."""

    async def prepare(self, now_s: float) -> None:  # noqa: B027  (nothing to prepare is the usual case)
        """Load what is loaded lazily; `KeySourceError` when that fails. For the start of a node."""

    async def close(self) -> None:  # noqa: B027
        """Give up what is under way."""


class _OneKey(KeySource):
    """A source of exactly one key: there is nothing to choose, so a token's `kid` is not looked at."""

    def __init__(self, key: Key, origin: str) -> None:
        self._key = key
        self._origin = origin

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._origin}: {listed(self.algorithms)}>"

    @property
    def algorithms(self) -> frozenset[str]:
        return self._key.algorithms

    async def find(self, kid: str | None, algorithm: str, now_s: float) -> Key:  # noqa: ARG002
        if algorithm not in self._key.algorithms:
            raise AuthFailed("the token's algorithm does not fit the key")
        return self._key


class SharedSecret(_OneKey):
    """An HMAC secret. Its length decides which of HS256, HS384 and HS512 it may serve."""

    def __init__(self, secret: bytes, *, origin: str = "shared secret") -> None:
        super().__init__(_secret_key(secret, origin), origin)

    @classmethod
    def from_file(cls, path: str | Path) -> SharedSecret:
        return cls(read_secret(path), origin=str(path))


def read_secret(path: str | Path) -> bytes:
    """The bytes of a secret's file, without the one line break that editors leave at the end."""
    content = _read_file(path)
    if content:
        # DER may end in the byte that is about to be cut off, and would then pass for a secret.
        _refuse_public_key(content, str(path))
    line_break = b"\r\n" if content.endswith(b"\r\n") else b"\n"
    return content.removesuffix(line_break)


class PemPublicKey(_OneKey):
    """A public key in PEM: RSA, EC on P-256, or Ed25519."""

    def __init__(self, pem: bytes, *, origin: str = "public key") -> None:
        if b"PRIVATE KEY-----" in pem:
            raise KeySourceError(f"{origin} holds a private key; the server needs the public key only")
        if b"BEGIN CERTIFICATE-----" in pem:
            raise KeySourceError(
                f"{origin} holds a certificate; extract its key with `openssl x509 -pubkey -noout`"
            )
        try:
            material: object = load_pem_public_key(pem)
        except (ValueError, UnsupportedAlgorithm):
            raise KeySourceError(
                f"{origin} is not a public key in PEM (-----BEGIN PUBLIC KEY-----)"
            ) from None
        super().__init__(_public_key(material, origin), origin)

    @classmethod
    def from_file(cls, path: str | Path) -> PemPublicKey:
        return cls(_read_file(path), origin=str(path))


class _KeySet(KeySource):
    """A JWK Set, held in memory and loaded again when it is old or lacks the key id a token names.

    Invariants
    - At most one load is under way; whoever needs it waits for that one, and a waiter that goes away
      does not take it along.
    - Between two loads lie at least `refresh_min_s`, whatever tokens arrive.
    - A load that fails leaves the keys as they were.
    """

    def __init__(self, origin: str, keys: tuple[Key, ...], *, refresh_min_s: float, age_max_s: float) -> None:
        self._origin = origin
        self._keys = keys
        self._refresh_min_s = refresh_min_s
        self._age_max_s = age_max_s
        self._tried_at_s: float | None = None
        self._failure: str | None = None
        self._loading: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._origin}: {len(self._keys)} keys>"

    @property
    def algorithms(self) -> frozenset[str]:
        return frozenset[str]().union(*(key.algorithms for key in self._keys)) if self._keys else ALGORITHMS

    @abstractmethod
    async def _read(self) -> bytes:
        """The JWK Set as it is now, or `KeySourceError`."""

    async def find(self, kid: str | None, algorithm: str, now_s: float) -> Key:
        await self._refresh(now_s, self._age_max_s)
        key = self._lookup(kid, algorithm)
        if key is None:
            await self._refresh(now_s, self._refresh_min_s)
            key = self._lookup(kid, algorithm)
        if key is not None:
            return key
        if self._failure is not None:
            raise AuthFailed(
                "no key is known for this token, and the signing keys are unavailable at the moment"
            )
        raise AuthFailed("unknown key id (kid)" if kid is not None else "no key is known for this token")

    async def prepare(self, now_s: float) -> None:
        await self._refresh(now_s, self._refresh_min_s)
        if self._failure is not None:
            raise KeySourceError(self._failure)

    async def close(self) -> None:
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait([self._loading])
            self._loading = None

    def _lookup(self, kid: str | None, algorithm: str) -> Key | None:
        named = [key for key in self._keys if kid is None or key.kid == kid]
        fitting = [key for key in named if algorithm in key.algorithms]
        if len(fitting) > 1:
            raise AuthFailed("the token's key id (kid) is missing or fits several keys")
        if named and not fitting and kid is not None:
            raise AuthFailed("the token's algorithm does not fit the key it names")
        return fitting[0] if fitting else None

    async def _refresh(self, now_s: float, interval_s: float) -> None:
        if self._loading is None or self._loading.done():
            # A negative distance means the clock was set back; waiting for it to return could take hours.
            if self._tried_at_s is not None and 0 <= now_s - self._tried_at_s < interval_s:
                return
            self._tried_at_s = now_s
            self._loading = asyncio.create_task(self._load())
        await asyncio.shield(self._loading)

    async def _load(self) -> None:
        try:
            self._keys = _parse_key_set(await self._read(), self._origin)
        except KeySourceError as error:
            self._failure = str(error)
            log.warning("signing keys not refreshed, %d in use: %s", len(self._keys), error)
        else:
            self._failure = None


class JwksFile(_KeySet):
    """A JWK Set in a file. It must be usable at the start; later it may be replaced at any time."""

    def __init__(
        self,
        path: str | Path,
        *,
        refresh_min_s: float = FILE_REFRESH_MIN_S,
        age_max_s: float = FILE_AGE_MAX_S,
    ) -> None:
        self._path = Path(path)
        keys = _parse_key_set(_read_file(path), str(path))
        super().__init__(str(path), keys, refresh_min_s=refresh_min_s, age_max_s=age_max_s)

    async def _read(self) -> bytes:
        return await asyncio.to_thread(_read_file, self._path)


class JwksUrl(_KeySet):
    """A JWK Set behind a URL. Redirects are not followed: keys come from where the operator said."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = URL_TIMEOUT_S,
        refresh_min_s: float = URL_REFRESH_MIN_S,
        age_max_s: float = URL_AGE_MAX_S,
    ) -> None:
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise KeySourceError("the JWKS URL must be http://host/path or https://host/path")
        # User, password and query may be credentials, so only the rest is ever shown.
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        super().__init__(shown, (), refresh_min_s=refresh_min_s, age_max_s=age_max_s)
        self._url = url
        self._timeout_s = timeout_s

    async def _read(self) -> bytes:
        body = bytearray()
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        headers = {"Accept": "application/jwk-set+json, application/json"}
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
                session.get(self._url, allow_redirects=False) as response,
            ):
                if response.status != 200:
                    raise KeySourceError(f"{self._origin} answered with status {response.status}, not 200")
                async for chunk in response.content.iter_chunked(16 * 1024):
                    body += chunk
                    if len(body) > KEY_FILE_BYTES_MAX:
                        raise KeySourceError(f"{self._origin} answered more than {KEY_FILE_BYTES_MAX} bytes")
        except TimeoutError:
            raise KeySourceError(f"{self._origin} gave no answer within {self._timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
            raise KeySourceError(f"{self._origin} cannot be fetched: {reason}") from None
        return bytes(body)


def listed(algorithms: frozenset[str]) -> str:
    return ", ".join(sorted(algorithms))


def _read_file(path: str | Path) -> bytes:
    try:
        with Path(path).open("rb") as file:
            content = file.read(KEY_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise KeySourceError(f"cannot read {path}: {error.strerror or type(error).__name__}") from None
    if len(content) > KEY_FILE_BYTES_MAX:
        raise KeySourceError(f"{path} is larger than {KEY_FILE_BYTES_MAX} bytes, too large for a key file")
    return content


def _secret_key(secret: bytes, origin: str, kid: str | None = None) -> Key:
    if not secret:
        raise KeySourceError(f"{origin}: the secret is empty")
    _refuse_public_key(secret, origin)
    algorithms = frozenset(name for name, size in HMAC_SECRET_BYTES_MIN.items() if len(secret) >= size)
    if not algorithms:
        least = min(HMAC_SECRET_BYTES_MIN.values())
        raise KeySourceError(f"{origin}: the secret has {len(secret)} bytes, at least {least} are needed")
    return Key(algorithms, secret, kid)


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
            if material.key_size < RSA_BITS_MIN:
                raise KeySourceError(
                    f"{origin}: the RSA key has {material.key_size} bits, at least {RSA_BITS_MIN} are needed"
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


def _parse_key_set(body: bytes, origin: str) -> tuple[Key, ...]:
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
        _secret_key(material, origin, kid)
        if isinstance(material, bytes)
        else _public_key(material, origin, kid)
    )
    if "alg" not in jwk:
        return key
    algorithms = frozenset(name for name in key.algorithms if name == jwk["alg"])
    if not algorithms:
        raise KeySourceError(f"{origin}: alg does not fit the key, or is not one of {listed(ALGORITHMS)}")
    return Key(algorithms, key.material, kid)
