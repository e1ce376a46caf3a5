"""HTML pages of jobs: one file each, readable without network, in light and dark mode.

What always holds of a page: text is always escaped; it has no script and no external address; its content security
policy forbids both.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from unisono.display import replace_unprintable
from unisono.pipeline.html.charts import Unit, format_value

Cell = str | int | float | bool | None

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_SLUG: Final = re.compile(r"[^a-z0-9]+")

STYLE: Final = """
:root { color-scheme: light dark; --paper: #fdfdfc; --ink: #1f2328; --soft: #59636e; --rule: #d9dde2;
  --card: #f4f5f6; --good: #1a7f43; --bad: #c03434; --chart-text: #59636e; --chart-grid: #d9dde2; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --ink: #e4e7eb; --soft: #9aa4af; --rule: #2f353c;
  --card: #1c2025; --good: #4fbf7a; --bad: #f07a72; --chart-text: #9aa4af; --chart-grid: #343b43;
  --chart-1: #5b9bf0; --chart-2: #f09a58; --chart-3: #53bd8c; --chart-4: #cd7fd4; --chart-5: #e4b840;
  --chart-6: #62c8d8; --chart-7: #ec7a8c; --chart-8: #a0a6af; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", "DejaVu Sans", sans-serif; }
main { max-width: 860px; margin: 0 auto; padding: 40px 24px 72px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 19px; margin: 44px 0 8px; padding-top: 18px; border-top: 1px solid var(--rule); }
h3 { font-size: 15px; margin: 24px 0 6px; }
p { margin: 8px 0; max-width: 72ch; }
p.lead, p.note, figcaption, caption { color: var(--soft); }
p.note { font-size: 13.5px; }
p.good, p.bad { font-weight: 600; margin: 18px 0; } p.good { color: var(--good); } p.bad { color: var(--bad); }
nav { margin: 18px 0 0; font-size: 13.5px; display: flex; flex-wrap: wrap; gap: 4px 16px; }
a { color: inherit; text-decoration-color: var(--rule); text-underline-offset: 3px; }
dl.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(122px, 1fr)); gap: 10px; margin: 20px 0; }
dl.facts div { background: var(--card); border-radius: 8px; padding: 10px 14px; }
dl.facts dt { color: var(--soft); font-size: 12.5px; } dl.facts dd { margin: 0; font-size: 20px; font-weight: 600; }
figure { margin: 18px 0 22px; overflow-x: auto; } figcaption { font-size: 13.5px; margin-bottom: 6px; }
svg.chart { display: block; width: 100%; min-width: 620px; height: auto; }
.wide { overflow-x: auto; margin: 12px 0 20px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: 4px; }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: 12.5px; }
th, td { padding: 5px 14px 5px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
td { overflow-wrap: anywhere; min-width: 7ch; } td:first-child { min-width: 16ch; }
td.n, th.n { text-align: right; } .n, .t { white-space: nowrap; }
td.n + td:not(.n), th.n + th:not(.n) { padding-left: 16px; }
th:last-child, td:last-child { padding-right: 0; }
pre { background: var(--card); border-radius: 8px; padding: 12px 14px; white-space: pre-wrap; font-size: 12.5px;
  overflow-wrap: anywhere; }
footer { margin-top: 48px; padding-top: 14px; border-top: 1px solid var(--rule); color: var(--soft);
  font-size: 12.5px; }
"""


class Fact(msgspec.Struct, frozen=True):
    """One figure that a reader should see first."""

    name: str
    value: Cell
    unit: Unit = ""


class HtmlPage:
    """A page, built from top to bottom."""

    def __init__(self, title: str, lead: str = "", footer: str = "") -> None:
        self._title = title
        self._lead = lead
        self._footer = footer
        self._sections: list[tuple[str, str]] = []
        self._body: list[str] = []

    def section(self, title: str) -> None:
        """A heading that the list at the top leads to."""
        name = _SLUG.sub("-", title.lower()).strip("-") or "section"
        name = f"{name}-{len(self._sections) + 1}"
        self._sections.append((name, title))
        self._body.append(f'<h2 id="{name}">{escape(title)}</h2>')

    def heading(self, title: str) -> None:
        """A heading within a section."""
        self._body.append(f"<h3>{escape(title)}</h3>")

    def text(self, text: str) -> None:
        self._body.append(f"<p>{escape(text)}</p>")

    def note(self, text: str) -> None:
        """Small print: how a figure is made, and its limits."""
        self._body.append(f'<p class="note">{escape(text)}</p>')

    def verdict(self, text: str, *, good: bool) -> None:
        self._body.append(f'<p class="{"good" if good else "bad"}">{escape(text)}</p>')

    def facts(self, facts: Sequence[Fact]) -> None:
        tiles = (
            f"<div><dt>{escape(fact.name)}</dt><dd>{escape(_cell_text(fact.value, fact.unit))}</dd></div>"
            for fact in facts
        )
        self._body.append(f'<dl class="facts">{"".join(tiles)}</dl>')

    def table(
        self,
        head: Sequence[str],
        rows: Sequence[Sequence[Cell]],
        *,
        units: Sequence[Unit] | None = None,
        caption: str = "",
    ) -> None:
        """Rows under their head, numbers written in the column's unit; they stand right, and times left."""
        chosen: Sequence[Unit] = units if units is not None else [""] * len(head)
        classes = [_class([row[place] for row in rows], unit) for place, unit in enumerate(chosen)]
        out = ['<div class="wide"><table>']
        if caption:
            out.append(f"<caption>{escape(caption)}</caption>")
        heads = (f"<th{own}>{escape(name)}</th>" for name, own in zip(head, classes, strict=True))
        out.append(f"<thead><tr>{''.join(heads)}</tr></thead><tbody>")
        for row in rows:
            cells = (
                f"<td{own}>{_escape_isolated(_cell_text(cell, unit))}</td>"
                for cell, unit, own in zip(row, chosen, classes, strict=True)
            )
            out.append(f"<tr>{''.join(cells)}</tr>")
        out.append("</tbody></table></div>")
        self._body.append("".join(out))

    def figure(self, svg: str, caption: str) -> None:
        """A chart of `unisono.pipeline.html.charts`, which is HTML already."""
        self._body.append(f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>")

    def code(self, text: str) -> None:
        """Lines as they are: JSON, a command."""
        lines = (_escape_isolated(each) for each in text.split("\n"))
        self._body.append(f"<pre>{'<br>'.join(lines)}</pre>")

    def html(self) -> str:
        """The whole document."""
        title = escape(self._title)
        links = "".join(f'<a href="#{name}">{escape(text)}</a>' for name, text in self._sections)
        return "\n".join(
            part
            for part in (
                "<!DOCTYPE html>",
                '<html lang="en"><head><meta charset="utf-8">',
                f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                f"<title>{title}</title><style>{STYLE}</style></head><body><main>",
                f"<header><h1>{title}</h1>",
                f'<p class="lead">{escape(self._lead)}</p>' if self._lead else "",
                f"<nav>{links}</nav>" if len(self._sections) > 1 else "",
                "</header>",
                *self._body,
                f"<footer>{escape(self._footer)}</footer>" if self._footer else "",
                "</main></body></html>\n",
            )
            if part
        )


def counted(number: int, name: str) -> str:
    """A number of things: `1 event`, `2,000 events`."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def escape(text: str) -> str:
    """`text` as HTML."""
    return html.escape(replace_unprintable(text))


def _escape_isolated(text: str) -> str:
    """The same for foreign names: their writing direction does not affect the text around them."""
    return f"<bdi>{escape(text)}</bdi>"


def _is_number(cell: Cell) -> bool:
    return cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool))


def _class(cells: Sequence[Cell], unit: Unit) -> str:
    """Of a column of a table."""
    if unit == "time":
        return ' class="t"'
    return ' class="n"' if cells and all(map(_is_number, cells)) else ""


def _cell_text(cell: Cell, unit: Unit = "") -> str:
    if cell is None:
        return "\N{EN DASH}"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return format_value(cell, unit) if isinstance(cell, int | float) else cell
