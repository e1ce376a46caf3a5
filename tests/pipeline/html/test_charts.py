"""Pictures and pages: the same every time, names shown as they are, nothing loaded from anywhere."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.pipeline.html.charts import (
    Series,
    bars,
    columns,
    format_value,
    histogram,
    line,
    ranges,
    stacked_bars,
)
from unisono.pipeline.html.pages import Figure, environment

HOUR = 3_600_000
TIMES = [1_790_000_000_000 + place * HOUR for place in range(48)]
AWKWARD = [
    "<script>alert(1)</script>",
    "$x^2$ and $",
    'a "quote" & <b>',
    "日本語",
    "line\nbreak\x00",
    "",
    "z" * 128,
]


def every_chart() -> list[str]:
    waves = [Series("up", list(range(48))), Series("$down$ <i>", [*range(47, 0, -1), None])]
    return [
        line(TIMES, waves, label="lines"),
        line(TIMES, waves[:1], label="area", area=True, unit="bytes"),
        ranges([0.5, 1.5, 2.5, 3.5], [Series("n", [1, None, 3]), Series("m", [0, 1, 1])], label="numbers"),
        line(TIMES[:1], [Series("one", [5])], label="one point"),
        columns(TIMES, [Series("a", [1] * 48), Series("b", [2] * 48)], step_ms=HOUR, label="columns"),
        bars(AWKWARD, list(range(7, 0, -1)), label='bars "&<>'),
        stacked_bars(["x", "y"], [Series("a", [1, 2]), Series("b", [3, 4])], label="stacked", unit="ms"),
        histogram([0, 10, 100, 1000], [5, 0, 7], label="histogram", unit="bytes"),
        bars([], [], label="nothing"),
    ]


def rendered(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in rendered(svg).iter("text")]


def test_the_same_data_give_the_same_picture_also_in_another_process() -> None:
    assert every_chart() == every_chart()
    code = "from tests.pipeline.html.test_charts import every_chart; print('\\0'.join(every_chart()))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout == "\0".join(every_chart()) + "\n"


def test_pictures_stand_by_themselves() -> None:
    ids: set[str] = set()
    for svg in every_chart():
        root = rendered(svg)
        assert root.tag == "svg"
        assert root.get("aria-label")
        assert not re.search(r"https?:|xlink|<metadata|<style|<script|pyplot", svg)
        own = [element.get("id", "") for element in root.iter() if element.get("id")]
        assert not ids & set(own), "ids of two pictures on one page must differ"
        ids |= set(own)
        used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
        assert used == set(own)
        assert "#000000" not in svg, "black is not legible on a dark page"
    assert "matplotlib.pyplot" not in sys.modules


def test_a_legend_has_every_name() -> None:
    """Also those that matplotlib would leave out."""
    for name in ("", "_private.added", "note.added"):
        series = [Series(name, [1, 2]), Series("_other", [3, 4]), Series("third", [5, 6])]
        for picture in (
            columns([0, 60_000], series, step_ms=60_000, label="x"),
            line([0, 60_000], series, label="x"),
            stacked_bars(["a", "b"], series, label="x"),
        ):
            assert {each.name for each in series if each.name} <= set(read_page(picture).text)


def test_names_are_shown_as_they_are() -> None:
    shown = texts(bars(AWKWARD, [7, 6, 5, 4, 3, 2, 1], label="bars"))
    assert shown[:4] == AWKWARD[:4]
    assert shown[4] == "line\ufffdbreak\ufffd"
    assert any(re.fullmatch("z+…z+", text) for text in shown)


@pytest.mark.parametrize("name", ["日" * 18, "日" * 42, "🎻" * 30])
def test_wide_names_have_room(name: str) -> None:
    """Their characters are as wide as high, which the font that measures them does not know."""
    root = rendered(bars([name, "b"], [2, 1], label="bars"))
    label = next(element for element in root.iter("text") if element.text and element.text[0] == name[0])
    end = float(label.get("x") or re.findall(r"translate\(([\d.]+)", label.get("transform", ""))[0])
    assert "text-anchor: end" in label.get("style", "")
    assert end >= 10.5 * (len(label.text or "") - 1)
    both = columns(TIMES, [Series(name, [1] * 48), Series("b", [1] * 48)], step_ms=HOUR, label="columns")
    assert texts(both)[-2:] == [label.text, "b"]


def test_a_name_does_not_turn_the_line_round() -> None:
    assert texts(bars(["\u202egnorw\u2066"], [1], label="bars"))[0] == "\ufffdgnorw\ufffd"


def test_columns_of_nothing_stand_on_zero() -> None:
    assert not [
        text
        for text in texts(columns(TIMES, [Series("a", [0] * 48)], step_ms=HOUR, label="c"))
        if "-" in text
    ]


def test_an_axis_over_new_year_names_both_years() -> None:
    days = [1_796_083_200_000 + place * 24 * HOUR for place in range(60)]  # from 2026-12-01
    assert "2026 and 2027" in texts(columns(days, [Series("a", [1] * 60)], step_ms=24 * HOUR, label="days"))


def test_bars_are_as_long_as_their_values() -> None:
    values = [1000.0, 500.0, 250.0, 0.0]
    root = rendered(bars(["a", "b", "c", "d"], values, label="bars"))
    drawn = [element.get("d", "") for element in root.iter("path") if "--chart-1" in element.get("style", "")]
    widths = []
    for path in drawn:
        xs = [float(x) for x in re.findall(r"[ML] (\S+) \S+", path)]
        widths.append(max(xs) - min(xs))
    assert widths == pytest.approx([widths[0] * value / 1000 for value in values], abs=0.05)
    assert texts(bars(["a", "b", "c", "d"], values, label="bars"))[-4:] == ["1,000", "500", "250", "0"]


def test_a_histogram_names_its_edges() -> None:
    svg = histogram([0, 100, 1_000, 10_000], [1, 2, 3], label="sizes", unit="bytes")
    assert {"0 B", "100 B", "1 kB", "10 kB"} <= set(texts(svg))
    with pytest.raises(ValueError, match="3 edges"):
        histogram([1, 2], [1, 2], label="wrong")


def test_times_are_utc() -> None:
    days = [1_767_225_600_000 + place * 24 * HOUR for place in range(10)]  # from 2026-01-01
    shown = texts(columns(days, [Series("a", [1] * 10)], step_ms=24 * HOUR, label="days"))
    assert "2026" in shown
    assert "9 Jan" in shown


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "", "0"),
        (1234567, "", "1,234,567"),
        (0.12345, "", "0.123"),
        (999, "bytes", "999 B"),
        (1_500, "bytes", "1.5 kB"),
        (999_700, "bytes", "1,000 kB"),
        (2_000_000_000, "bytes", "2 GB"),
        (12, "ms", "12 ms"),
        (90_000, "ms", "1.5 min"),
        (5_400_000, "ms", "1.5 h"),
        (99.44, "%", "99.4 %"),
        (1_790_000_000_000, "time", "2026-09-21 14:13"),
    ],
)
def test_numbers_for_people(value: float, unit: str, text: str) -> None:
    assert format_value(value, unit) == text  # type: ignore[arg-type]


class Reading(HTMLParser):
    """What a browser would see: the tags in order, attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read_page(html: str) -> Reading:
    reading = Reading()
    reading.feed(html)
    reading.close()
    return reading


PARTS = """{% extends "html/templates/base.html" %}
{% import "html/templates/parts.html" as parts with context %}
{% block title %}{{ title }}{% endblock %}
{% block lead %}{{ lead }}{% endblock %}
{% block footer %}{{ footer }}{% endblock %}
{% block body %}"""


def rendered_page(body: str, title: str = "t", lead: str = "", footer: str = "", **values: object) -> str:
    """A page with `body`, which is a template."""
    template = environment().from_string(f"{PARTS}{body}{{% endblock %}}")
    return template.render(sections=[], title=title, lead=lead, footer=footer, **values)


@settings(max_examples=60)
@given(st.lists(st.text(min_size=1, max_size=40), min_size=5, max_size=5))
def test_whatever_stands_in_a_text_is_shown_as_text(given_texts: list[str]) -> None:
    def page(title: str, body: str, cell: str, fact: str, code: str) -> Reading:
        template = """{{ parts.section(title) }}<p>{{ lead }}</p><p>{{ cell }}</p>{{ parts.verdict(code, true) }}
            {{ parts.table([cell, "n"], [[lead, 1], [code, 2]], caption=footer) }}
            {{ parts.tiles([(footer, cell, "")]) }}{{ parts.code(code) }}"""
        return read_page(rendered_page(template, title, body, fact, cell=cell, code=code))

    plain, awkward = page("t", "b", "c", "f", "x"), page(*given_texts)
    ordinary = {"br", "bdi"}  # a line break in code is one
    assert [tag for tag in awkward.tags if tag not in ordinary] == [
        tag for tag in plain.tags if tag not in ordinary
    ]


def test_times_in_a_table_stay_in_one_line() -> None:
    rows = [["a", 1_790_000_000_000, 1]]
    html = rendered_page("{{ parts.table(['name', 'when', 'n'], rows, ['', 'time', '']) }}", rows=rows)
    assert '<td class="t"><bdi>2026-09-21 14:13</bdi></td><td class="n">' in html


def test_a_page_needs_nothing_else() -> None:
    html = rendered_page(
        """{{ parts.section("One") }}{% for each in figures %}{{ parts.figure(each) }}{% endfor %}
        {{ parts.section("Two") }}
        {{ parts.table(["name", "events", "size"], [["a", 1234, 5000], ["b", none, 1]], ["", "", "bytes"]) }}""",
        figures=[Figure(svg, "caption") for svg in every_chart()],
    )
    reading = read_page(html)
    assert "script" not in reading.tags
    assert not re.search(r"https?:|//", re.sub(r"/\*.*?\*/", "", html))
    links = [value for key, value in reading.attributes if key in ("href", "src")]
    assert all(link is not None and link.startswith("#") for link in links)
    ids = [value for key, value in reading.attributes if key == "id"]
    assert len(ids) == len(set(ids))
    assert {"1,234", "5 kB", "\N{EN DASH}"} <= set(reading.text)
    assert ("http-equiv", "Content-Security-Policy") in reading.attributes
