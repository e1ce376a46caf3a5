"""What the settings say about themselves: section, help, type and allowed values."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from unisono.config import Settings

FIELDS = {field.name: field for field in msgspec.structs.fields(Settings)}


def section_and_help(name: str) -> tuple[str, str]:
    """A setting's section in the help, and its one-line description."""
    hint = type_of(name)
    meta = next(m for m in reversed(hint.__metadata__) if isinstance(m, Meta) and m.description)
    assert meta.description is not None
    assert meta.extra is not None
    return str(meta.extra["section"]), meta.description


def is_list(name: str) -> bool:
    return any(get_origin(part) is tuple for part in _parts(name))


def is_table(name: str) -> bool:
    return any(get_origin(part) is dict for part in _parts(name))


def is_flag(name: str) -> bool:
    return bool in _parts(name)


def allowed_values(name: str) -> tuple[str, ...]:
    """The values of a setting that has only a few; also those of the entries of a list."""
    kinds = [kind for part in _parts(name) for kind in (part, *get_args(part))]
    values = [str(value) for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]
    return tuple(dict.fromkeys(values))


def type_of(name: str) -> Any:
    """A setting's type with its bounds."""
    return _hints()[name]


@cache
def _hints() -> dict[str, Any]:
    """Cached: resolving them takes milliseconds, and every option of `serve` needs them."""
    return get_type_hints(Settings, include_extras=True)


def _parts(name: str) -> tuple[Any, ...]:
    plain = get_args(type_of(name))[0]
    return (plain, *get_args(plain))
