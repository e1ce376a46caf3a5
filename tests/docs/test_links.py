"""Every relative link of the documentation leads somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^()\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def _links(page: Path) -> Iterator[str]:
    for link in _LINK.finditer(_FENCED.sub("", page.read_text(encoding="utf-8"))):
        target = link[1] or link[2]
        if not re.match(r"[a-z]+:", target):
            yield target


def _anchors(page: Path) -> set[str]:
    """The names under which headings can be linked to, as repository viewers make them."""
    headings = _HEADING.findall(_FENCED.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in _links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link}: there is no such file"
        assert target.is_relative_to(ROOT), f"{link}: leads out of the repository"
        if anchor:
            assert anchor in _anchors(target), f"{link}: no such heading"


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in _links(index)}
    missing = [page for page in (ROOT / "docs").rglob("*.md") if page != index and page not in linked]
    assert missing == []
