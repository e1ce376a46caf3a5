"""Errors of a lake; each text says what to do."""

from __future__ import annotations

import re
from typing import Final

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_CAUSE: Final = re.compile(r"\s*↳\s*")
_METADATA: Final = re.compile(r"169\.254\.169\.254|metadata\.google\.internal")
"""Where a cloud's machines get their credentials: the last place, after options, environment and profile."""
_NO_CREDENTIALS: Final = (
    "no credentials in options, environment or profile, and none from this machine's cloud"
)


_NO_HTTP: Final = "URL scheme is not allowed"


class LakeError(Exception):
    """The lake refused an operation, which changed nothing."""


class LakeUnusable(LakeError):
    """The lake is missing, damaged, or not one that this program supports."""


class OutsideLake(LakeError):
    """Committed ids are asked for that the lake does not have."""


class ForeignFiles(LakeUnusable):
    """Another program wrote some of a table's files."""


class CommitConflict(LakeError):
    """Another process committed to the same table first; plan again from its current version."""


def error_text(error: BaseException) -> str:
    """An error's text without the colours of delta-rs, each cause after what it caused."""
    return _CAUSE.sub(": ", _COLOUR.sub("", str(error))).strip()


def one_line(error: Exception) -> str:
    text = " ".join(error_text(error).split())
    if _NO_HTTP in text:
        text = f"{text} (http:// needs the option aws_allow_http=true)"
    if _METADATA.search(text) and _NO_CREDENTIALS not in text:
        text = f"{_NO_CREDENTIALS}: {text}"
    return text
