"""Options of the data source: texts that are numbers, flags or names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from unisono.pipeline.errors import NoSuchRange, PipelineError

_CATALOG: Final = "option."
_MANAGED: Final = frozenset(("path", "is_managed_location", "serialization.format"))


def given_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options that a person gave, by lower-case name: without what a catalog adds to those of its tables."""
    given = {name.lower(): value for name, value in options.items()}
    named = {name[len(_CATALOG) :]: value for name, value in given.items() if name.startswith(_CATALOG)}
    if named:
        return named
    return {name: value for name, value in given.items() if name not in _MANAGED}


def number_option(options: Mapping[str, str], name: str, least: int) -> int | None:
    """A whole number from `least` on; None when it is not given."""
    text = options.get(name)
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise NoSuchRange(f"option {name} must be a whole number from {least} on, not {text!r}")
    return number


def flag_option(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false").lower()
    if text not in ("true", "false"):
        raise PipelineError(f"option {name} must be true or false, not {text!r}")
    return text == "true"


def names_option(text: str | None) -> tuple[str, ...] | None:
    """A name, or a JSON array of names."""
    if text is None:
        return None
    if not text.startswith("["):
        return (text,)
    try:
        names: Any = msgspec.json.decode(text, type=tuple[str, ...])
    except msgspec.DecodeError as error:
        raise NoSuchRange(f"option partitions must be a name or a JSON array of names: {error}") from error
    return tuple(names)
