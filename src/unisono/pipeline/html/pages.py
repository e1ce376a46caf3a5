"""HTML pages of jobs from templates: `templates/` has what all pages share, `page.html` of a job its own markup.

What always holds of a page: text is always escaped, and the same values give the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, Final

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined

from unisono.display import replace_unprintable
from unisono.pipeline.html.charts import Unit, format_value

Cell = str | int | float | bool | None

_SLUG: Final = re.compile(r"[^a-z0-9]+")


class Figure(msgspec.Struct, frozen=True):
    """A chart of `unisono.pipeline.html.charts` with its caption."""

    svg: str
    caption: str


class Column(msgspec.Struct, frozen=True):
    """Of a table: `style` is `n` for numbers, which stand right, `t` for times, which stay in one line."""

    name: str
    unit: Unit
    style: str


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("unisono.pipeline", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: replace_unprintable(value) if type(value) is str else value,
        extensions=["jinja2.ext.do"],
    )
    made.filters |= {"cell": cell_text, "counted": counted, "rows": _rows, "slug": _slug}
    made.globals["columns_of"] = _columns
    return made


def render(template: str, **values: Any) -> str:
    """The page of a template, named by its path in `unisono.pipeline`."""
    return environment().get_template(template).render(sections=[], **values)


def counted(number: int, name: str) -> str:
    """A number of things: `1 event`, `2,000 events`."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def cell_text(cell: Cell, unit: Unit = "") -> str:
    if cell is None:
        return "\N{EN DASH}"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return format_value(cell, unit) if isinstance(cell, int | float) else cell


def _rows(values: Iterable[object], *names: str) -> list[tuple[Cell, ...]]:
    """Rows of a table: some attributes of each value."""
    return [attrgetter(*names)(value) for value in values]


def _slug(title: str) -> str:
    return _SLUG.sub("-", title.lower()).strip("-") or "section"


def _columns(
    head: Sequence[str], rows: Sequence[Sequence[Cell]], units: Sequence[Unit] | None
) -> list[Column]:
    return [
        Column(name, unit, "t" if unit == "time" else "n" if rows and all(map(_is_number, cells)) else "")
        for name, unit, *cells in zip(head, units or [""] * len(head), *rows, strict=True)
    ]


def _is_number(cell: Cell) -> bool:
    return cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool))
