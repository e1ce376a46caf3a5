"""Draws with matplotlib for a page: its settings, and the conversion of its SVG.

matplotlib's global state stays unchanged, and `pyplot`, which keeps figures, is never imported.
"""

from __future__ import annotations

import hashlib
import io
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from xml.etree import ElementTree

import matplotlib
from matplotlib.figure import Figure

from unisono.display import replace_unprintable

POINTS: Final = 72
"""Of an inch: one unit of a picture, shown as one pixel."""

TEXT: Final = "#7d8590"
GRID: Final = "#8b949e"
PALETTE: Final = ("#3f7fd6", "#e0813b", "#3ba272", "#b85fc0", "#d9a520", "#4bb3c3", "#d65a6f", "#8a8f98")

_VARIABLES: Final = {TEXT: "--chart-text", GRID: "--chart-grid"} | {
    colour: f"--chart-{place}" for place, colour in enumerate(PALETTE, 1)
}
_COLOUR: Final = re.compile(r"#[0-9a-f]{6}")
_NUMBER: Final = re.compile(r"-?\d+\.\d{3,}")
_REFERENCE: Final = re.compile(r"#([\w.-]+)")
_FONT: Final = re.compile(r"font-family: [^;]*;?")
_SETTINGS: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "unisono",  # else ids are random
    "text.parse_math": False,  # a name with two dollar signs is not a formula
    "axes.unicode_minus": False,
    "font.family": ["DejaVu Sans"],  # comes with matplotlib: the same widths on every machine
    "font.size": 10.5,
    "axes.edgecolor": GRID,
    "axes.labelcolor": TEXT,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "text.color": TEXT,
    "path.simplify": True,
}
_one_at_a_time = threading.Lock()


@contextmanager
def drawing() -> Iterator[None]:
    """Apply the settings. One thread at a time, because matplotlib's settings are global."""
    with _one_at_a_time, matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # Only widths come from the font; a browser has other fonts for missing glyphs.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")
        yield


def to_svg(figure: Figure, label: str) -> str:
    """The chart as one `<svg>` element for an HTML page; `label` describes it for screen readers."""
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(out.getvalue())  # noqa: S314 - written by matplotlib a moment ago
    for parent in list(root.iter()):
        for child in list(parent):
            if _local(child.tag) in ("metadata", "style"):  # a style would apply to the whole page
                parent.remove(child)
    used = {
        name for element in root.iter() for value in _values(element) for name in _REFERENCE.findall(value)
    }
    digest = hashlib.sha256(out.getvalue().encode()).hexdigest()[:8]
    for element in root.iter():
        _rewrite(element, used, digest)
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-label": replace_unprintable(label),
        "class": "chart",
    }
    root.set("stroke-linejoin", "round")
    return ElementTree.tostring(root, encoding="unicode")


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _values(element: ElementTree.Element) -> Iterator[str]:
    for key, value in element.attrib.items():
        if _local(key) in ("href", "clip-path"):
            yield value


def _rewrite(element: ElementTree.Element, used: set[str], digest: str) -> None:
    """Remove namespaces, which HTML does not need, and ids without references; make other ids unique per chart."""
    element.tag = _local(element.tag)
    if element.tag != "text" and not (element.text or "").strip():
        element.text = None
    element.tail = None
    kept: dict[str, str] = {}
    for name, value in element.attrib.items():
        key = _local(name)
        if key == "id":
            if value in used:
                kept[key] = f"{value}-{digest}"
        elif key in ("href", "clip-path"):
            kept[key] = _REFERENCE.sub(rf"#\1-{digest}", value)
        elif key == "style":
            kept[key] = _COLOUR.sub(_variable, _FONT.sub("", value))
        elif key == "transform" and value.startswith("rotate(-0 "):
            continue
        else:
            kept[key] = _NUMBER.sub(lambda found: f"{float(found[0]):.2f}", value).replace("\n", "")
    element.attrib = kept


def _variable(found: re.Match[str]) -> str:
    name = _VARIABLES.get(found[0])
    return f"var({name}, {found[0]})" if name else found[0]
