"""A token for every task of a write: given by the caller, or signed by the task itself.

A client has one connection (CONN-05): two tasks with one token would replace each other repeatedly. A retry of a
task, or a speculative copy of a slow one, has the same client, so that the newer one replaces the older.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jwt
import msgspec

from unisono.pipeline.errors import PipelineError
from unisono.protocol.identities import client_id_fault, client_id_of

TTL_S: Final = 3600.0
"""Of a signed token; a longer write connects again with a new one."""

TASKS_MAX: Final = 2**31 - 1
"""Spark numbers the tasks of a write with 32 bits."""

_WAYS: Final = ("jwt_secret_file", "tokens_file", "token_file", "token")


class Token(msgspec.Struct, frozen=True):
    """A task's client and its token; its repr does not show the token."""

    client_id: str
    text: str

    def __repr__(self) -> str:
        return f"Token({self.client_id!r})"


class Tokens(msgspec.Struct, frozen=True):
    """Where tokens come from; made on the driver, used on executors."""

    way: str
    value: str
    client_id: str
    claims: dict[str, Any] = {}

    @classmethod
    def of(cls, options: Mapping[str, str], client_id: str) -> Tokens:
        given = [way for way in _WAYS if options.get(way)]
        if len(given) != 1:
            raise PipelineError(f"give one of the options {', '.join(_WAYS)}; there are {len(given)}")
        way = given[0]
        claims = {
            name: options[full] for name, full in (("iss", "issuer"), ("aud", "audience")) if full in options
        }
        try:
            prefixes = msgspec.json.decode(options.get("prefixes", '[""]'), type=list[str])
        except msgspec.DecodeError as error:
            raise PipelineError(f"option prefixes must be a JSON array of texts: {error}") from error
        value = options[way] if way == "token" else str(Path(options[way]).absolute())
        chosen = options.get("client_id") or client_id
        if (fault := client_id_fault(f"{chosen}.{TASKS_MAX}")) is not None:
            raise PipelineError(f"option client_id {fault} with the number of a task behind it")
        return cls(way, value, chosen, {"allowed_partition_prefixes": prefixes, **claims})

    def __repr__(self) -> str:
        return f"Tokens({self.way})"

    def of_task(self, task: int) -> SinkTokenSource:
        """The tokens of task number `task`."""
        if self.way == "jwt_secret_file":
            return SinkTokenSource(self, f"{self.client_id}.{task}", "")
        if self.way == "token":
            tokens = [self.value]
        else:
            tokens = _read(self.value).decode("ascii", "replace").split()
            tokens = tokens[:1] if self.way == "token_file" else tokens
        if task >= len(tokens):
            raise PipelineError(
                f"there are {len(tokens)} tokens and more tasks: coalesce({max(1, len(tokens))}) the DataFrame, give "
                "more tokens (tokens_file), or let tasks sign their own (jwt_secret_file)"
            )
        return SinkTokenSource(self, _client_id_of(tokens[task]), tokens[task])

    def sign(self, client_id: str) -> str:
        now = time.time()
        claims = {"client_id": client_id, "iat": now, "exp": now + TTL_S, **self.claims}
        return jwt.encode(claims, _read(self.value), algorithm="HS256")


class SinkTokenSource(msgspec.Struct, frozen=True):
    """The tokens of one task: the one it was given, or a fresh one each time."""

    tokens: Tokens
    client_id: str
    given: str

    def __repr__(self) -> str:
        return f"Source({self.client_id!r})"

    @property
    def renews(self) -> bool:
        return not self.given

    def token(self) -> Token:
        return Token(self.client_id, self.given or self.tokens.sign(self.client_id))


def _client_id_of(token: str) -> str:
    client_id = client_id_of(token)
    if client_id is None:
        raise PipelineError("a token is no JWT with a client_id claim")
    return client_id


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes().strip()
    except OSError as error:
        raise PipelineError(f"{path} cannot be read on this machine: {error.strerror}") from error
