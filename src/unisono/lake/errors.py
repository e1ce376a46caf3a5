"""What can go wrong with a lake, each with a text that says what to do."""

from __future__ import annotations

import re
from typing import Final

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_CAUSE: Final = re.compile(r"\s*↳\s*")


class LakeError(Exception):
    """The lake cannot be used as asked; the step that raised it changed nothing."""


class LakeUnusable(LakeError):
    """There is no lake there, or not one this program can work with."""


class CommitConflict(LakeError):
    """Another process changed the same table first; plan again from what is there now."""


def plain(error: BaseException) -> str:
    """An error's text without the colours of delta-rs, and a cause, which it writes below, behind what it caused."""
    return _CAUSE.sub(": ", _COLOUR.sub("", str(error))).strip()


def one_line(error: Exception) -> str:
    return " ".join(plain(error).split())
