"""Tokens whose signature was verified before: clients connect again with the token they have.

A token is known by its hash, never kept itself (AUTH-08). What may change between two connects is checked at each:
its times, and whether the key of its signature is still in use.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec

from unisono.front.auth.keys import Key

if TYPE_CHECKING:
    from unisono.front.auth.verify import Identity

MAX_REMEMBERED: Final = 4_096
MAX_REMEMBERED_BYTES: Final = 4 * 1024 * 1024
"""Length of the claims of all tokens that are remembered: as objects they take some times as much memory."""


class VerifiedToken(msgspec.Struct, frozen=True):
    """What a signed token says, and the key of its signature."""

    identity: Identity
    algorithm: str
    kid: str | None
    key: Key
    not_before_s: float
    size: int


class VerifiedTokens:
    """The last tokens that were verified, within bounds."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[bytes, VerifiedToken] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._tokens)

    def get(self, name: bytes) -> VerifiedToken | None:
        if (found := self._tokens.get(name)) is not None:
            self._tokens.move_to_end(name)
        return found

    def add(self, name: bytes, token: VerifiedToken) -> None:
        self.forget(name)
        self._tokens[name] = token
        self._bytes += token.size
        while len(self._tokens) > MAX_REMEMBERED or self._bytes > MAX_REMEMBERED_BYTES:
            _, oldest = self._tokens.popitem(last=False)
            self._bytes -= oldest.size

    def forget(self, name: bytes) -> None:
        if (known := self._tokens.pop(name, None)) is not None:
            self._bytes -= known.size


def name_of(token: str, claimed_client_id: str, stored_claims: Sequence[str]) -> bytes:
    """The hash of a token, and of what else decides which identity it proves."""
    named = f"{len(token)}:{token}{len(claimed_client_id)}:{claimed_client_id}"
    if stored_claims:
        named += "".join(f"{len(claim)}:{claim}" for claim in stored_claims)
    return sha256(named.encode(errors="surrogatepass")).digest()
