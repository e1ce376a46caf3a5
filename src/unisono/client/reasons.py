"""Reasons in words: why the server cannot be reached, and what the client waits for."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import aiohttp

from unisono.client.sync.state import TOO_MANY, Phase
from unisono.display import shorten

if TYPE_CHECKING:
    from unisono.client.status import Status

NAMED_MAX: Final = 3
"""Names in one sentence; the status has all of them."""

TEXT_MAX: Final = 500
"""Characters of another program's message."""

SECRET_MIN: Final = 8
"""A shorter string is no secret, and would be found in every text."""

_TOKENS: Final = re.compile(r"[\w-]{8,}\.[\w-]{8,}\.[\w-]*|(?i:bearer)\s+\S+")
"""What looks like a JWT, or is presented as a token."""


def address(url: str) -> str:
    """A server's address without what may be secret in it: user, password, query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def without_tokens(text: str, *tokens: str | None) -> str:
    """Text from elsewhere with every token removed (AUTH-08)."""
    for token in tokens:
        if token and len(token) >= SECRET_MIN:
            text = text.replace(token, "[token]")
    text = _TOKENS.sub("[token]", text)
    return shorten(text, TEXT_MAX)


def unreachable(url: str, error: Exception, timeout_s: float) -> str:
    """Why no WebSocket could be had from an address."""
    where = address(url)
    match error:
        case aiohttp.WSServerHandshakeError() if error.status in (101, 200):
            return f"{where} answers, but not as a WebSocket server: {error.message}"
        case aiohttp.WSServerHandshakeError():
            return f"{where} answers with HTTP status {error.status}: is the path of the address right?"
        case aiohttp.ClientResponseError():
            return f"{where} answers, but not as a WebSocket server: {error.message.splitlines()[0]}"
        case aiohttp.ClientConnectorCertificateError():
            return f"the certificate of {where} is not trusted: {error.certificate_error}"
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return f"{where} does not speak TLS as wss:// needs it: {error}"
        case TimeoutError():
            doubt = ": does it speak TLS, as wss:// needs?" if where.startswith("wss:") else ""
            return f"{where} gave no answer within {timeout_s:g} s{doubt}"
        case aiohttp.ClientConnectorError():
            return f"{where} cannot be reached: {error.os_error}"
        case aiohttp.ServerDisconnectedError() if not isinstance(error.message, str):
            return f"{where} closed the connection in the middle of its answer"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientOSError():
            return f"{where} closed the connection before it was open: does it need wss://? ({error})"
    return f"{where} cannot be connected to: {type(error).__name__}: {error}"


def listed(names: Iterable[str], count: int) -> str:
    """The first few of many names."""
    listed = ", ".join(map(repr, islice(names, NAMED_MAX)))
    return f"{listed} and {count - NAMED_MAX} more" if count > NAMED_MAX else listed


def not_followed(partitions: Mapping[str, str]) -> str:
    """Partitions that are refused or left out, by their reason."""
    by_reason: dict[str, list[str]] = {}
    for name, why in partitions.items():
        by_reason.setdefault(why, []).append(name)
    return "; ".join(
        f"{len(names)} of the partitions {_verb(why, len(names))}: {listed(names, len(names))} ({why})"
        for why, names in by_reason.items()
    )


def _verb(why: str, count: int) -> str:
    if why == TOO_MANY:
        return "is more than the server takes" if count == 1 else "are more than the server takes"
    return "is refused by the server" if count == 1 else "are refused by the server"


def not_sent(drafts: Mapping[str, str]) -> str:
    """Drafts that are set aside."""
    some = "1 draft is" if len(drafts) == 1 else f"{len(drafts)} drafts are"
    return f"{some} set aside: {listed(drafts, len(drafts))} ({next(iter(drafts.values()))})"


def waiting_for(status: Status, url: str) -> str:
    """What a client that is not done yet is waiting for, and why."""
    reasons = []
    if status.phase is not Phase.LIVE:
        reasons.append(f"the client is {status.phase.value} ({address(url)})")
    if status.pending:
        reasons.append(f"{status.pending} drafts are not answered")
    if status.set_aside:
        reasons.append(not_followed(status.set_aside))
    if status.drafts_set_aside:
        reasons.append(not_sent(status.drafts_set_aside))
    if status.stopped is not None:
        reasons.append(f"stopped: {status.stopped}")
    elif status.last_error is not None:
        reasons.append(f"{status.last_error.code}: {status.last_error.message}")
    return "; ".join(reasons)
