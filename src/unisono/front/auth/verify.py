"""Verifies a signed JWT and returns the identity it proves (AUTH).

Invariants
- A token is verified only with an algorithm that is on the operator's list and on the key's.
- The texts of `AuthFailed` are fixed sentences. No part of a token or a key is in them, in a log line or in a repr
  (AUTH-08).
- Time is an argument. Nothing here reads a clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jwt
import msgspec

from unisono.front.auth.keys import ALGORITHMS, MIN_HMAC_SECRET_BYTES, Key, KeySourceError, listed
from unisono.front.auth.signed_tokens import SignedToken, parse_token, signed_claims
from unisono.front.auth.sources import KeySource, SharedSecret
from unisono.front.auth.verified_tokens import VerifiedToken, VerifiedTokens, name_of
from unisono.protocol.canonical import NotCanonical, canonical
from unisono.protocol.errors import AuthFailed
from unisono.protocol.identities import DERIVED_CLAIM, client_id_fault, is_derived
from unisono.protocol.partitions import normal_start

MAX_TOKEN_BYTES = 16 * 1024
"""Enough for some hundred partition names; a longer token only costs work before it is refused."""

MAX_AUTHOR_BYTES = 4 * 1024
"""Bytes of a user_id and of the claims that the model asks for, as they are stored: every event has them."""

LEEWAY_S = 0.0
"""Clocks synchronised by NTP differ by far less; every second of leeway is a second more for an expired token."""

NBF_LEEWAY_S = 10.0
"""Least leeway for `nbf`: issuers set it to the time of issue, and their clock may be ahead of this one."""


class Identity(msgspec.Struct, frozen=True):
    """The client of a connection, and the partitions its token grants.

    `has_scope`: the token has a claim about partitions, even if an empty one (AUTHZ-02). `readable…`: partitions that
    it grants for reading only (AUTHZ-08). `principal`: the client_id that the token names, from which `client_id` may
    be derived (AUTH-09). `author`: what is stored with its events, canonical JSON or empty (AUTH-10).
    """

    client_id: str
    expires_at_s: float
    partitions: frozenset[str]
    prefixes: tuple[str, ...]
    has_scope: bool
    readable_partitions: frozenset[str] = frozenset()
    readable_prefixes: tuple[str, ...] = ()
    principal: str = ""
    user_id: str | None = None
    author: str = ""
    jti: str = ""

    def __post_init__(self) -> None:
        if not self.principal:
            msgspec.structs.force_setattr(self, "principal", self.client_id)


NO_NAMES: Final[frozenset[str]] = frozenset()
"""One for all: an empty set takes as much memory as one with five names."""

SCOPE_CLAIMS = (
    "allowed_partitions",
    "allowed_partition_prefixes",
    "readable_partitions",
    "readable_partition_prefixes",
)
"""The claims about partitions. A token with one of them, even an empty one, is held to them (AUTHZ-02)."""


class Verifier:
    """Verifies tokens."""

    def __init__(
        self,
        keys: KeySource,
        *,
        issuer: str | None = None,
        audience: str | None = None,
        leeway_s: float = LEEWAY_S,
        algorithms: Sequence[str] | None = None,
        user_claim: str = "sub",
    ) -> None:
        if not (math.isfinite(leeway_s) and leeway_s >= 0):
            raise KeySourceError("the clock leeway must be zero or more seconds")
        self.keys = keys
        self.issuer = issuer
        self.audience = audience
        self.leeway_s = leeway_s
        self.user_claim = user_claim
        self._accepted = _accepted(keys, algorithms)
        self._verified_tokens = VerifiedTokens()

    async def verify(
        self, token: str, claimed_client_id: str, now_s: float, stored_claims: Sequence[str] = ()
    ) -> Identity:
        """The identity `token` proves for `claimed_client_id` at `now_s`; otherwise `AuthFailed`.

        `stored_claims`: names of claims that are stored with events.
        """
        found = self.verify_now(token, claimed_client_id, now_s, stored_claims)
        if found is not None:
            return found
        signed = self._parse(token)
        key = await self.keys.find(signed.kid, signed.algorithm, now_s)
        name = name_of(token, claimed_client_id, stored_claims)
        return self._verified(name, signed, key, claimed_client_id, now_s, stored_claims)

    def verify_now(
        self, token: str, claimed_client_id: str, now_s: float, stored_claims: Sequence[str] = ()
    ) -> Identity | None:
        """As `verify`, without waiting; None where its key may have to be fetched first."""
        if len(token) > MAX_TOKEN_BYTES:
            raise AuthFailed(f"the token is longer than {MAX_TOKEN_BYTES} bytes")
        name = name_of(token, claimed_client_id, stored_claims)
        before = self._verified_tokens.get(name)
        if before is not None:
            if self.keys.known(before.kid, before.algorithm, now_s) is before.key:
                self._check_not_expired(before.identity.expires_at_s, now_s)
                self._check_not_early(before.not_before_s, now_s)
                return before.identity
            self._verified_tokens.forget(name)
        signed = self._parse(token)
        key = self.keys.known(signed.kid, signed.algorithm, now_s)
        if key is None:
            return None
        return self._verified(name, signed, key, claimed_client_id, now_s, stored_claims)

    def _parse(self, token: str) -> SignedToken:
        signed = parse_token(token)
        if signed.algorithm not in self._accepted:
            raise AuthFailed("the token's algorithm is not accepted here")
        return signed

    def _verified(
        self,
        name: bytes,
        signed: SignedToken,
        key: Key,
        claimed_client_id: str,
        now_s: float,
        stored_claims: Sequence[str],
    ) -> Identity:
        claims = signed_claims(signed, key)
        expires_at_s = self._check_times(claims, now_s)
        self._check_origin(claims)
        user_id = _user_id(claims, self.user_claim)
        identity = Identity(
            client_id=_client_id(claims, claimed_client_id),
            expires_at_s=expires_at_s,
            partitions=frozenset(_names(claims, "allowed_partitions")) or NO_NAMES,
            prefixes=_names(claims, "allowed_partition_prefixes"),
            has_scope=any(name in claims for name in SCOPE_CLAIMS),
            readable_partitions=frozenset(_names(claims, "readable_partitions")) or NO_NAMES,
            readable_prefixes=_names(claims, "readable_partition_prefixes"),
            principal=str(claims["client_id"]),
            user_id=user_id,
            jti=_token_id(claims),
            author=_author(user_id, {name: claims[name] for name in stored_claims if name in claims}),
        )
        self._verified_tokens.add(
            name,
            VerifiedToken(
                identity,
                signed.algorithm,
                signed.kid,
                key,
                _seconds(claims, "nbf") if "nbf" in claims else -math.inf,
                len(signed.payload),
            ),
        )
        return identity

    def _check_times(self, claims: Mapping[str, object], now_s: float) -> float:
        if "exp" not in claims:
            raise AuthFailed("the token has no exp claim")
        expires_at_s = _seconds(claims, "exp")
        self._check_not_expired(expires_at_s, now_s)
        if "nbf" in claims:
            self._check_not_early(_seconds(claims, "nbf"), now_s)
        return expires_at_s

    def _check_not_expired(self, expires_at_s: float, now_s: float) -> None:
        if now_s >= expires_at_s + self.leeway_s:
            raise AuthFailed("the token has expired")

    def _check_not_early(self, not_before_s: float, now_s: float) -> None:
        if not_before_s > now_s + max(self.leeway_s, NBF_LEEWAY_S):
            raise AuthFailed("the token is not valid yet (nbf)")

    def _check_origin(self, claims: Mapping[str, object]) -> None:
        if self.issuer is not None and claims.get("iss") != self.issuer:
            raise AuthFailed("the token's issuer (iss) is not the one expected here")
        if self.audience is not None:
            audience = claims.get("aud")
            if self.audience not in (audience if isinstance(audience, list) else [audience]):
                raise AuthFailed("the token's audience (aud) does not include this server")


def sign_token(
    secret: bytes,
    client_id: str,
    *,
    partitions: Sequence[str] | None = None,
    prefixes: Sequence[str] | None = None,
    ttl_s: float,
    now_s: float,
    algorithm: str = "HS256",
    issuer: str | None = None,
    audience: str | None = None,
    readable_partitions: Sequence[str] | None = None,
    readable_prefixes: Sequence[str] | None = None,
    user_id: str | None = None,
    user_claim: str = "sub",
    derived_client_ids: bool = False,
    claims: Mapping[str, object] | None = None,
) -> str:
    """A token signed with a shared secret. `None` leaves a claim out; an empty list grants nothing."""
    _accepted(SharedSecret(secret), [algorithm])
    optional = {
        "allowed_partitions": None if partitions is None else list(partitions),
        "allowed_partition_prefixes": None if prefixes is None else list(prefixes),
        "readable_partitions": None if readable_partitions is None else list(readable_partitions),
        "readable_partition_prefixes": None if readable_prefixes is None else list(readable_prefixes),
        "iss": issuer,
        "aud": audience,
        user_claim: user_id,
        DERIVED_CLAIM: derived_client_ids or None,
    }
    signed: dict[str, object] = {**(claims or {}), "client_id": client_id, "iat": now_s, "exp": now_s + ttl_s}
    signed |= {name: value for name, value in optional.items() if value is not None}
    return jwt.encode(signed, secret, algorithm=algorithm)


def _accepted(keys: KeySource, algorithms: Sequence[str] | None) -> frozenset[str]:
    """The algorithms the operator accepts; KeySourceError when the keys serve none of them."""
    if algorithms is None:
        return ALGORITHMS
    for name in algorithms:
        if name.lower() == "none":
            raise KeySourceError("the algorithm `none` means unsigned tokens and is never accepted")
        if name not in ALGORITHMS:
            raise KeySourceError(f"unknown algorithm {name!r}; known are {listed(ALGORITHMS)}")
    accepted = frozenset(algorithms)
    if not accepted:
        raise KeySourceError(f"the list of accepted algorithms is empty; known are {listed(ALGORITHMS)}")
    if not accepted & keys.algorithms:
        advice = ""
        if isinstance(keys, SharedSecret):
            lengths = ", ".join(f"{name} {size}" for name, size in MIN_HMAC_SECRET_BYTES.items())
            advice = f" (bytes a secret needs: {lengths})"
        raise KeySourceError(f"{listed(accepted)} accepted, but {keys!r} serves none of these{advice}")
    return accepted


def _seconds(claims: Mapping[str, object], name: str) -> float:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AuthFailed(f"the token's {name} claim must be a number")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise AuthFailed(f"the token's {name} claim is out of range")
    return seconds


def _client_id(claims: Mapping[str, object], claimed_client_id: str) -> str:
    client_id = claims.get("client_id")
    if not isinstance(client_id, str) or not client_id:
        raise AuthFailed("the token's client_id claim must be a non-empty string")
    if (fault := client_id_fault(client_id)) is not None:
        raise AuthFailed(f"the token's client_id claim {fault}")
    if claimed_client_id != client_id:
        if claims.get(DERIVED_CLAIM) is not True or not is_derived(claimed_client_id, client_id):
            raise AuthFailed("the token was issued for another client_id")
        if (fault := client_id_fault(claimed_client_id)) is not None:
            raise AuthFailed(f"the client_id {fault}")
    return claimed_client_id


def _token_id(claims: Mapping[str, object]) -> str:
    """The claim `jti`, by which a token can be revoked; empty where there is none."""
    return _text(claims.get("jti"), "the token's jti claim") or ""


def _user_id(claims: Mapping[str, object], claim: str) -> str | None:
    user_id = _text(claims.get(claim), "the token's claim for the user")
    if user_id is None:
        return None
    if (fault := client_id_fault(user_id)) is not None:
        raise AuthFailed(f"the token's claim for the user {fault}")
    return user_id


def _text(value: object, what: str) -> str | None:
    """A claim that is a string, or a whole number, as some issuers have it; None where it is missing."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise AuthFailed(f"{what} must be a string")


def _author(user_id: str | None, claims: Mapping[str, object]) -> str:
    """The stored form of who submits: canonical JSON, empty where there is nothing to store."""
    author: dict[str, Any] = {} if user_id is None else {"user_id": user_id}
    if claims:
        author["claims"] = dict(claims)
    if not author:
        return ""
    try:
        text = canonical(author)
    except NotCanonical:
        raise AuthFailed(
            "the claims that are stored with events cannot be written as canonical JSON"
        ) from None
    if len(text) > MAX_AUTHOR_BYTES:
        raise AuthFailed(f"the claims that are stored with events have more than {MAX_AUTHOR_BYTES} bytes")
    return text.decode()


def _names(claims: Mapping[str, object], claim: str) -> tuple[str, ...]:
    """The names or prefixes of a claim; those that no partition can have are left out."""
    values = claims.get(claim, [])
    if not isinstance(values, list):
        raise AuthFailed(f"the token's {claim} claim must be an array of strings")
    names: list[str] = []
    for value in values:
        if not isinstance(value, str):
            raise AuthFailed(f"the token's {claim} claim must be an array of strings")
        if (name := normal_start(value)) is not None:
            names.append(name)
    return tuple(names)
