"""Text for people: untrusted text made safe to print, long text shortened, byte counts and times with their units."""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime
from typing import Final
from urllib.parse import unquote

_JOINERS: Final = "\u200c\u200d"
"""Format characters that scripts and emoji need. All others could reverse the rest of the line."""

_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that command a terminal, break a line or reverse its direction."""

_UNPRINTABLE: Final = re.compile(_CONTROLS.pattern[:-1] + "\ud800-\udfff\ufffe\uffff]")
"""The same, and what no document may contain."""

_PARAMETER: Final = re.compile(r"(?<=[?&])([^=&]*)=[^&]*")
"""Of the query of a URI."""


def shorten(text: str, chars_max: int) -> str:
    """At most so many characters, the last of them an ellipsis where some are left out."""
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def shorten_repr(text: str, chars_max: int) -> str:
    """The text in quotes, with the ellipsis behind them where characters are left out."""
    return repr(text) if len(text) <= chars_max else f"{text[: chars_max - 1]!r}…"


def blank_controls(text: str) -> str:
    """Untrusted text in one line that cannot command the terminal: a space for each such character."""
    return "".join(
        " " if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") and char not in _JOINERS else char
        for char in text
    )


def escape_controls(text: str) -> str:
    """Untrusted text in one line that cannot command the terminal: such characters are escaped as in JSON."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def replace_unprintable(text: str) -> str:
    """Untrusted text for a document: a replacement character for what it may not contain or would break its line."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def hide_credentials(uri: str) -> str:
    """A URI without the part before its @, where passwords are, and without those among its parameters."""
    scheme, separator, rest = uri.partition("://")
    return f"{scheme}{separator}{_PARAMETER.sub(_without_password, rest).rpartition('@')[2]}"


def _without_password(parameter: re.Match[str]) -> str:
    name = parameter[1]
    return f"{name}=…" if "password" in unquote(name).lower() else parameter[0]


def megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def utc_time(time_ms: int) -> str:
    """A wall-clock time in ISO format; the number itself where no calendar has it."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
