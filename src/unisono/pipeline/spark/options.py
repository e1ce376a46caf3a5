"""Options of the data source: texts that are numbers, flags or names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from unisono.pipeline.errors import NoSuchRange, PipelineError
from unisono.pipeline.fold import normalise_names


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
    """A name, or a JSON array of names, as the log spells them; each once."""
    if text is None:
        return None
    if not text.startswith("["):
        return normalise_names([text])
    try:
        names: Any = msgspec.json.decode(text, type=tuple[str, ...])
    except msgspec.DecodeError as error:
        raise NoSuchRange(f"option partitions must be a name or a JSON array of names: {error}") from error
    return normalise_names(names) if names else ()


def column_types(schema: str) -> dict[str, str]:
    """Column → type of a schema in Spark's notation without nested commas."""
    pairs = (part.strip().partition(" ") for part in schema.split(","))
    return {name: kind for name, _, kind in pairs}


def chosen_columns(schema: str, text: str | None) -> tuple[str, ...]:
    """The columns named in an option, each once; all without one."""
    known = tuple(column_types(schema))
    if text is None:
        return known
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise PipelineError(
            f"option columns: {unknown[0] if unknown else text!r} is none of {', '.join(known)}"
        )
    return names
