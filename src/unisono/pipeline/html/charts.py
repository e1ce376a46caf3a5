"""Small charts for HTML pages: `<svg>` elements as text, drawn by matplotlib.

What always holds of a chart:

- the same data give the same bytes on every machine: it has no time and no place of drawing;
- text is text (searchable, readable by a screen reader), and a name is shown as it is: never as a formula, never as
  markup;
- its colours are variables of the page around it (`--chart-1` …), with values that are legible on light and dark.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num, num2date
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator

from unisono.display import replace_unprintable
from unisono.pipeline.html.drawing import GRID, PALETTE, POINTS, TEXT, drawing, to_svg

Unit = Literal["", "bytes", "ms", "%", "time"]
"""What a number is of; a `time` is in milliseconds since the epoch."""

WIDTH: Final = 760
HEIGHT: Final = 230
BAR_HEIGHT: Final = 24
NAME_CELLS_MAX: Final = 36
"""Cells of a name in a chart. A partition name may have 128 bytes; the table beside the chart has all of it. A wide
character takes two cells.
"""
MARKED_POINTS_MAX: Final = 40
"""A line of few points shows them; a line of one would otherwise show nothing."""
EDGE_LABELS_MAX: Final = 16
LETTER: Final = 6.2
LEGEND_MARK: Final = 36
"""How wide a letter is, about, and what stands before a name in a legend."""
WIDE_LACKING: Final = 4.5
"""Extra width of a wide character (日, 🎻) in a browser: matplotlib lacks the glyph and measures less."""

_COUNTS: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_SPANS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))
WHOLE_BELOW: Final = 10_000
"""Counts on an axis are written out up to here."""
_BYTES: Final = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


class Series(msgspec.Struct, frozen=True):
    """Values with a name, one for each place of the picture's axis; None where there is none."""

    name: str
    values: Sequence[float | None]


def line(
    xs: Sequence[float],
    series: Sequence[Series],
    *,
    label: str,
    unit: Unit = "",
    area: bool = False,
) -> str:
    """Lines over `xs`: milliseconds since the epoch, shown in UTC.

    `area` fills below; of several series each then stands on the one before.
    """
    if not xs or not series:
        return _nothing(label)
    with drawing():
        figure, axes = _canvas(HEIGHT)
        places = _times(xs)
        marker = "o" if len(xs) <= MARKED_POINTS_MAX else None
        below = [0.0] * len(xs)
        for place, one in enumerate(series):
            colour = PALETTE[place % len(PALETTE)]
            values = [float("nan") if value is None else float(value) for value in one.values]
            top = [a + b for a, b in zip(below, values, strict=True)] if area else values
            axes.plot(
                places,
                top,
                color=colour,
                linewidth=1.8,
                marker=marker,
                markersize=3.2,
                label=str(place),
            )
            if area:
                axes.fill_between(places, below, top, color=colour, alpha=0.25, linewidth=0)
                below = top
        axes.set_ylim(bottom=0, top=axes.get_ylim()[1] or 1)
        if len(xs) == 1:  # else the axis would span years
            axes.set_xlim(places[0] - 0.5, places[0] + 0.5)
        _value_axis(axes, unit)
        _time_axis(axes)
        _legend(axes, series)
        return to_svg(figure, label)


def columns(
    times: Sequence[int],
    series: Sequence[Series],
    *,
    step_ms: int,
    label: str,
    unit: Unit = "",
    height: int = HEIGHT,
) -> str:
    """A column for each time (its beginning, milliseconds since the epoch, UTC), the series stacked in it."""
    if not times or not series:
        return _nothing(label)
    with drawing():
        figure, axes = _canvas(height)
        places, width = _times(times), step_ms / 86_400_000
        _stack(axes, places, width, series)
        axes.set_xlim(places[0] - width * 0.5, places[-1] + width * 1.5)
        _value_axis(axes, unit)
        _time_axis(axes)
        _legend(axes, series)
        return to_svg(figure, label)


def ranges(edges: Sequence[float], series: Sequence[Series], *, label: str) -> str:
    """A column for each of the equal ranges of numbers between neighbouring `edges`, the series stacked in it."""
    with drawing():
        figure, axes = _canvas(HEIGHT)
        _stack(axes, edges[:-1], edges[1] - edges[0], series)
        axes.set_xlim(edges[0], edges[-1])
        _value_axis(axes, "")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        axes.xaxis.set_major_formatter(_tick(""))
        _legend(axes, series)
        return to_svg(figure, label)


def bars(names: Sequence[str], values: Sequence[float], *, label: str, unit: Unit = "") -> str:
    """Horizontal bars, the first on top, each with its value."""
    return stacked_bars(names, [Series("", values)], label=label, unit=unit)


def stacked_bars(names: Sequence[str], series: Sequence[Series], *, label: str, unit: Unit = "") -> str:
    """Horizontal bars, the first on top, each made of the series' values side by side, with their sum."""
    if not names or not series:
        return _nothing(label)
    with drawing():
        shown = [_short(name) for name in names]
        left_room = _lacking(shown) / WIDTH
        figure, axes = _canvas(BAR_HEIGHT * len(names) + (52 if len(series) > 1 else 24), left_room)
        places = range(len(names))
        left = [0.0] * len(names)
        for place, one in enumerate(series):
            values = [float(value or 0) for value in one.values]
            colour = PALETTE[place % len(PALETTE)]
            axes.barh(places, values, 0.66, left, color=colour, linewidth=0, label=str(place))
            left = [a + b for a, b in zip(left, values, strict=True)]
        for place, value in zip(places, left, strict=True):
            axes.annotate(
                format_value(value, unit),
                (value, place),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                color=TEXT,
                fontsize=10,
            )
        axes.set_yticks(list(places), shown)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlim(0, max(*left, 1e-9) * 1.13)
        axes.xaxis.set_visible(False)
        axes.yaxis.grid(visible=False)
        axes.spines["bottom"].set_visible(False)
        _legend(axes, series)
        return to_svg(figure, label)


def histogram(edges: Sequence[float], counts: Sequence[int], *, label: str, unit: Unit = "") -> str:
    """How often values fall between neighbouring `edges` (one more than `counts`).

    Bins are drawn equally wide and labelled by their edges, whether these grow by steps or by factors.
    """
    if not counts:
        return _nothing(label)
    if len(edges) != len(counts) + 1:
        raise ValueError(f"{len(counts)} bins have {len(counts) + 1} edges, not {len(edges)}")
    with drawing():
        figure, axes = _canvas(HEIGHT)
        axes.bar(range(len(counts)), list(counts), 0.92, align="edge", color=PALETTE[0], linewidth=0)
        each = -(-len(edges) // EDGE_LABELS_MAX)
        shown = range(0, len(edges), each)
        axes.set_xticks(
            [place - 0.04 for place in shown], [format_value(edges[place], unit) for place in shown]
        )
        axes.set_xlim(-0.4, len(counts) + 0.4)
        _value_axis(axes, "")
        return to_svg(figure, label)


def format_value(value: float, unit: Unit = "") -> str:
    """A number for people: thousands separated, bytes in kB or MB, times in UTC, rounded."""
    if unit == "bytes":
        for size, name in _BYTES:
            if abs(value) >= size:
                return f"{_digits(value / size)} {name}"
        return f"{value:,.0f} B"
    if unit == "ms":
        for size, name in _SPANS:
            if abs(value) >= size:
                return f"{_digits(value / size)} {name}"
        return f"{_digits(value)} ms"
    if unit == "time":
        return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    return f"{_digits(value)} %" if unit == "%" else _digits(value)


def _digits(value: float) -> str:
    if value == int(value) or abs(value) >= 999.5:  # three digits of it would be 1e+03
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _canvas(height: float, left_room: float = 0.0) -> tuple[Figure, Axes]:
    """`left_room`: the part of the width that is left free there."""
    layout = ConstrainedLayoutEngine(rect=(left_room, 0, 1 - left_room, 1))
    figure = Figure(figsize=(WIDTH / POINTS, height / POINTS), layout=layout)
    axes = figure.add_subplot()
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)
    axes.set_axisbelow(True)
    return figure, axes


def _stack(axes: Axes, places: Sequence[float], width: float, series: Sequence[Series]) -> None:
    """Columns from each place on, with a little room before the next, standing on zero also where all are empty."""
    below = [0.0] * len(places)
    for number, one in enumerate(series):
        values = [float(value or 0) for value in one.values]
        colour = PALETTE[number % len(PALETTE)]
        axes.bar(
            places,
            values,
            width * 0.88,
            below,
            align="edge",
            color=colour,
            linewidth=0,
            label=str(number),
        )
        below = [a + b for a, b in zip(below, values, strict=True)]
    axes.set_ylim(0, axes.get_ylim()[1] if any(below) else 1)


def _nothing(label: str) -> str:
    with drawing():
        figure, axes = _canvas(60)
        axes.set_axis_off()
        axes.text(0.5, 0.5, "nothing to show", ha="center", va="center", color=TEXT)
        return to_svg(figure, label)


def _times(milliseconds: Sequence[float]) -> list[float]:
    return [float(date2num(datetime.fromtimestamp(value / 1000, UTC))) for value in milliseconds]  # type: ignore[no-untyped-call]


def _value_axis(axes: Axes, unit: Unit) -> None:
    axes.yaxis.grid(visible=True, color=GRID, linewidth=0.8)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=unit in ("", "bytes"), min_n_ticks=2))
    axes.yaxis.set_major_formatter(_tick(unit))


def _tick(unit: Unit) -> FuncFormatter:
    def of(value: float, _place: Any) -> str:
        if unit or abs(value) < WHOLE_BELOW:
            return format_value(value, unit)
        size, name = next((size, name) for size, name in _COUNTS if abs(value) >= size)
        return f"{_digits(value / size)}{name}"

    return FuncFormatter(of)


def _time_axis(axes: Axes) -> None:
    locator = AutoDateLocator(tz=UTC, minticks=4, maxticks=9)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(
        _Dates(  # type: ignore[no-untyped-call]
            locator,
            tz=UTC,
            formats=["%Y", "%b", "%-d %b", "%H:%M", "%H:%M", "%S.%f"],
            zero_formats=["", "%Y", "%-d %b", "%-d %b", "%H:%M", "%H:%M"],
            offset_formats=["", "%Y", "%Y", "%-d %b %Y UTC", "%-d %b %Y UTC", "%-d %b %Y %H:%M UTC"],
        )
    )
    axes.xaxis.get_offset_text().set_color(TEXT)


class _Dates(ConciseDateFormatter):
    """Dates without their year, which stands at the end of the axis once: both years, where the axis spans two."""

    def format_ticks(self, values: Any) -> Any:
        self._years = sorted({num2date(value, tz=UTC).year for value in values})  # type: ignore[no-untyped-call]
        return super().format_ticks(values)  # type: ignore[no-untyped-call]

    def get_offset(self) -> str:
        text: str = super().get_offset()  # type: ignore[no-untyped-call]
        return f"{self._years[0]} and {self._years[-1]}" if text.isdigit() and len(self._years) > 1 else text


def _legend(axes: Axes, series: Sequence[Series]) -> None:
    """Names above the picture, in rows, as many to a row as its width has room for.

    What is drawn has a number for a label: matplotlib leaves out an empty one, and one that begins with `_`.
    """
    count = len(series)
    if count < 2:
        return
    handles, _ = axes.get_legend_handles_labels()
    names = [_short(one.name) for one in series]
    widest = LEGEND_MARK + LETTER * max(map(_cells, names))
    rows = -(-count // max(1, int(WIDTH / widest))) if widest * count > WIDTH else 1
    across = -(-count // rows)
    order = [
        place for start in range(across) for place in range(start, count, across)
    ]  # it fills columns first
    axes.legend(
        [handles[place] for place in order],
        [names[place] for place in order],
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=across,
        frameon=False,
        handlelength=1.1,
        columnspacing=1.4 + _lacking(names) / 10,
        borderaxespad=0.2,
        labelcolor=TEXT,
        fontsize=10,
    )


def _short(name: str) -> str:
    """A long name without its middle: names mostly differ at their ends."""
    clean = replace_unprintable(name)
    if _cells(clean) <= NAME_CELLS_MAX:
        return clean
    half = (NAME_CELLS_MAX - 1) // 2
    return f"{_fitting(clean, half)}…{_fitting(clean[::-1], half)[::-1]}"


def _fitting(text: str, cells: int) -> str:
    """The beginning of `text` that fits into `cells`."""
    end = 0
    while end < len(text) and _cells(text[: end + 1]) <= cells:
        end += 1
    return text[:end]


def _wide(text: str) -> int:
    return sum(unicodedata.east_asian_width(character) in "WF" for character in text)


def _cells(text: str) -> int:
    return len(text) + _wide(text)


def _lacking(names: Sequence[str]) -> float:
    """How much wider the widest of some names is in a browser than where matplotlib has measured them."""
    measured = max(LETTER * len(name) for name in names)
    return max(0.0, max(LETTER * len(name) + WIDE_LACKING * _wide(name) for name in names) - measured)
