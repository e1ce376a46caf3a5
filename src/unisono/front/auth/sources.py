"""Where verification keys come from: a shared secret, a PEM file, a JWKS file or URL (AUTH-02).

Time is an argument. Nothing here reads a clock.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from pathlib import Path
from urllib.parse import urlsplit

from unisono.front.auth.keys import (
    ALGORITHMS,
    MAX_KEY_FILE_BYTES,
    Key,
    KeySourceError,
    listed,
    pem_key,
    read_file,
    read_key_set,
    read_secret,
    secret_key,
)
from unisono.protocol.errors import AuthFailed

log = logging.getLogger("unisono.front.auth")

URL_TIMEOUT_S = 5.0
"""Shorter than any handshake window, so that a hanging key host answers as `auth_failed`, not as a hang."""

MIN_URL_REFRESH_S = 10.0
"""Shortest time between two requests for unknown key ids: invalid ids cost the host at most six requests a minute."""

MAX_URL_AGE_S = 600.0
"""How long a key is still accepted after its host has withdrawn it."""

MIN_FILE_REFRESH_S = 1.0
MAX_FILE_AGE_S = 60.0
"""As for the URL; reading a local file again is cheap."""


class KeySource(ABC):
    """Where verification keys come from."""

    @property
    @abstractmethod
    def algorithms(self) -> frozenset[str]:
        """Every algorithm that a key of this source serves, as far as they are known now."""

    @abstractmethod
    async def find(self, kid: str | None, algorithm: str, now_s: float) -> Key:
        """The key a token names, or `AuthFailed`."""

    @abstractmethod
    def known(self, kid: str | None, algorithm: str, now_s: float) -> Key | None:
        """What `find` returns where it need not wait; None where it may have to."""

    async def prepare(self, now_s: float) -> None:  # noqa: B027  (nothing to prepare is the usual case)
        """Load the keys that are loaded lazily; `KeySourceError` when that fails. For the start of a node."""

    async def close(self) -> None:  # noqa: B027
        """Cancel a load in progress."""


class _OneKey(KeySource):
    """A source of exactly one key: a token's `kid` is ignored."""

    def __init__(self, key: Key, origin: str) -> None:
        self._key = key
        self._origin = origin

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._origin}: {listed(self.algorithms)}>"

    @property
    def algorithms(self) -> frozenset[str]:
        return self._key.algorithms

    async def find(self, kid: str | None, algorithm: str, now_s: float) -> Key:
        return self.known(kid, algorithm, now_s)

    def known(self, kid: str | None, algorithm: str, now_s: float) -> Key:  # noqa: ARG002
        if algorithm not in self._key.algorithms:
            raise AuthFailed("the token's algorithm does not fit the key")
        return self._key


class SharedSecret(_OneKey):
    """An HMAC secret."""

    def __init__(self, secret: bytes, *, origin: str = "shared secret") -> None:
        super().__init__(secret_key(secret, origin), origin)

    @classmethod
    def from_file(cls, path: str | Path) -> SharedSecret:
        return cls(read_secret(path), origin=str(path))


class PemPublicKey(_OneKey):
    """A public key in PEM."""

    def __init__(self, pem: bytes, *, origin: str = "public key") -> None:
        super().__init__(pem_key(pem, origin), origin)

    @classmethod
    def from_file(cls, path: str | Path) -> PemPublicKey:
        return cls(read_file(path), origin=str(path))


class _KeySet(KeySource):
    """A JWK Set in memory, loaded again when it is old or lacks the key id of a token.

    Invariants
    - At most one load is in progress; all that need it wait for that one, and a waiter that is cancelled does not
      cancel it.
    - Between two loads lie at least `min_refresh_s`, whatever tokens arrive.
    - A load that fails leaves the keys as they were.
    """

    def __init__(self, origin: str, keys: tuple[Key, ...], *, min_refresh_s: float, max_age_s: float) -> None:
        self._origin = origin
        self._keys = keys
        self._min_refresh_s = min_refresh_s
        self._max_age_s = max_age_s
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
        await self._refresh(now_s, self._max_age_s)
        key = self._lookup(kid, algorithm)
        if key is None:
            await self._refresh(now_s, self._min_refresh_s)
            key = self._lookup(kid, algorithm)
        if key is not None:
            return key
        if self._failure is not None:
            raise AuthFailed(
                "no key is known for this token, and the signing keys are unavailable at the moment"
            )
        raise AuthFailed("unknown key id (kid)" if kid is not None else "no key is known for this token")

    def known(self, kid: str | None, algorithm: str, now_s: float) -> Key | None:
        return self._lookup(kid, algorithm) if self._is_fresh(now_s, self._max_age_s) else None

    async def prepare(self, now_s: float) -> None:
        await self._refresh(now_s, self._min_refresh_s)
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

    def _is_fresh(self, now_s: float, interval_s: float) -> bool:
        if self._loading is not None and not self._loading.done():
            return False
        # A negative distance means the clock was set back; waiting for it to return could take hours.
        return self._tried_at_s is not None and 0 <= now_s - self._tried_at_s < interval_s

    async def _refresh(self, now_s: float, interval_s: float) -> None:
        if self._is_fresh(now_s, interval_s):
            return
        if self._loading is None or self._loading.done():
            self._tried_at_s = now_s
            self._loading = asyncio.create_task(self._load())
        await asyncio.shield(self._loading)

    async def _load(self) -> None:
        try:
            self._keys = read_key_set(await self._read(), self._origin)
        except KeySourceError as error:
            self._failure = str(error)
            log.warning(
                "signing keys not refreshed, %d in use: %s",
                len(self._keys),
                error,
                extra={"key_source": self._origin, "keys": len(self._keys), "error": str(error)},
            )
        else:
            self._failure = None


class JwksFile(_KeySet):
    """A JWK Set in a file. It must be usable at the start; later it may be replaced at any time."""

    def __init__(
        self,
        path: str | Path,
        *,
        min_refresh_s: float = MIN_FILE_REFRESH_S,
        max_age_s: float = MAX_FILE_AGE_S,
    ) -> None:
        self._path = Path(path)
        keys = read_key_set(read_file(path), str(path))
        super().__init__(str(path), keys, min_refresh_s=min_refresh_s, max_age_s=max_age_s)

    async def _read(self) -> bytes:
        return await asyncio.to_thread(read_file, self._path)


class JwksUrl(_KeySet):
    """A JWK Set behind a URL. Redirects are not followed: keys come from where the operator said."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = URL_TIMEOUT_S,
        min_refresh_s: float = MIN_URL_REFRESH_S,
        max_age_s: float = MAX_URL_AGE_S,
    ) -> None:
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise KeySourceError("the JWKS URL must be http://host/path or https://host/path")
        # User, password and query may be credentials: they are never shown.
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        super().__init__(shown, (), min_refresh_s=min_refresh_s, max_age_s=max_age_s)
        self._url = url
        self._timeout_s = timeout_s

    async def _read(self) -> bytes:
        import aiohttp  # a third of a command's start, and few have their keys behind a URL

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
                    if len(body) > MAX_KEY_FILE_BYTES:
                        raise KeySourceError(f"{self._origin} answered more than {MAX_KEY_FILE_BYTES} bytes")
        except TimeoutError:
            raise KeySourceError(f"{self._origin} gave no answer within {self._timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
            raise KeySourceError(f"{self._origin} cannot be fetched: {reason}") from None
        return bytes(body)
