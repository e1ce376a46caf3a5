"""Every error the wire knows, and what it does to the connection (ERR-01, CONN-10).

WireError
├── BadRequest                    open
├── ValidationFailed              open
├── Forbidden                     open
├── RateLimited                   open    carries retry_after_ms
├── AuthFailed                    4001
├── ProtocolVersionUnsupported    4002    carries supported_versions
├── ProfileUnsupported            4002    carries supported_profiles
└── ServerError                   1011
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import ClassVar

from unisono.display import shorten
from unisono.vocabulary import FieldError, Json, JsonObject

SUPPORTED_VERSIONS = ("1.0",)

ENVELOPE_FIELDS = ("type", "msg_id", "timestamp", "protocol_version", "payload")


class CloseCode(IntEnum):
    """Why the server closed a WebSocket. Stable: clients may decide by it."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    INVALID_TEXT = 1007
    TOO_BIG = 1009
    SERVER_ERROR = 1011
    AUTH_FAILED = 4001
    UNSUPPORTED = 4002
    REPLACED = 4003
    TIMEOUT = 4004
    SLOW_CONSUMER = 4005
    OVERLOAD = 4006


class WireError(Exception):
    """An error that the client receives in an `error` message.

    `close_code` is None where the connection stays open.
    """

    code: ClassVar[str]
    close_code: ClassVar[CloseCode | None] = None

    def __init__(self, message: str, details: JsonObject | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def payload(self) -> JsonObject:
        """The `payload` of the `error` message (ERR-02)."""
        body: JsonObject = {"code": self.code, "message": self.message}
        if self.details is not None:
            body["details"] = self.details
        return body


class BadRequest(WireError):
    """Malformed message, missing field, unknown type, or a message out of turn."""

    code = "bad_request"


class ValidationFailed(WireError):
    """Well formed, and against a rule of the protocol (limits of a partition set in a sync)."""

    code = "validation_failed"

    def __init__(self, errors: Sequence[FieldError]) -> None:
        listed: list[Json] = [{"field": e.field, "message": e.message} for e in errors]
        super().__init__("; ".join(f"{e.field}: {e.message}" for e in errors), {"errors": listed})


class Forbidden(WireError):
    """The identity may not touch a partition that the request names."""

    code = "forbidden"

    def __init__(self, partitions: Sequence[str]) -> None:
        super().__init__("not authorised for every partition named", {"partitions": list(partitions)})


class Revoked(Forbidden):
    """The identity may no longer read partitions that it is subscribed to: they are taken out (AUTHZ-09)."""

    def __init__(self, partitions: Sequence[str]) -> None:
        super().__init__(partitions)
        self.message = "access to partitions was revoked"
        self.details = {"partitions": list(partitions), "revoked": True}


class RateLimited(WireError):
    """Too much at once; the message was not processed and may be sent again after the wait."""

    code = "rate_limited"

    def __init__(self, message: str, retry_after_ms: int) -> None:
        super().__init__(message, {"retry_after_ms": retry_after_ms})
        self.retry_after_ms = retry_after_ms

    def payload(self) -> JsonObject:
        return super().payload() | {"retry_after_ms": self.retry_after_ms}


class AuthFailed(WireError):
    """The token is not good, or no longer, or speaks of somebody else."""

    code = "auth_failed"
    close_code = CloseCode.AUTH_FAILED


class ProtocolVersionUnsupported(WireError):
    """The client speaks a version this server does not (ENV-05), or another protocol of that name."""

    code = "protocol_version_unsupported"
    close_code = CloseCode.UNSUPPORTED

    def __init__(self, asked: str | None) -> None:
        """`asked` is None where the message is in camelCase, as in later protocols."""
        versions = ", ".join(SUPPORTED_VERSIONS)
        if asked is None:
            says = (
                f"the message is in camelCase; this server speaks the Insieme protocol, version {versions}, with the "
                f"fields {', '.join(ENVELOPE_FIELDS)}, and its clients are @unisono/client for JavaScript and "
                "unisono.client for Python"
            )
        else:
            says = f"protocol_version {shorten(asked, 32)!r} is not supported; this server speaks {versions}"
        super().__init__(says, {"supported_versions": list(SUPPORTED_VERSIONS)})

    def payload(self) -> JsonObject:
        return super().payload() | {"supported_versions": list(SUPPORTED_VERSIONS)}


class ProfileUnsupported(WireError):
    """No profile that both sides can use (PROF-04)."""

    code = "profile_unsupported"
    close_code = CloseCode.UNSUPPORTED

    def __init__(self, message: str, offered: Sequence[str]) -> None:
        super().__init__(message, {"supported_profiles": list(offered)})


class ServerError(WireError):
    """The fault is ours; the client reconnects and retries, and deduplication makes that safe."""

    code = "server_error"
    close_code = CloseCode.SERVER_ERROR

    def __init__(self, message: str = "internal error; reconnect and retry pending drafts") -> None:
        super().__init__(message)


WIRE_ERRORS: tuple[type[WireError], ...] = (
    BadRequest,
    ValidationFailed,
    Forbidden,
    RateLimited,
    AuthFailed,
    ProtocolVersionUnsupported,
    ProfileUnsupported,
    ServerError,
)
