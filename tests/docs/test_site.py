"""The documentation site: every page is in its navigation, its pictures are current, and it works as plain files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from tools.site.sequences import pictures

from tests.js.browser import chromium
from tests.package.building import clone, run
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
MADE = {
    "index.md",
    "documents.md",
    "tour.md",
    "deploying.md",
    "security.md",
    "contributing.md",
    "changelog.md",
}
MADE_FROM_CODE = {"reference/python-api.md", "reference/spark-api.md"}


def pages_of(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for below in nav.values():
            yield from pages_of(below)
    else:
        for below in nav:
            yield from pages_of(below)


def test_every_page_is_in_the_navigation() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = list(pages_of(settings["nav"]))
    assert len(set(listed)) == len(listed)
    docs = ROOT / "docs"
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md") if page.parent.name != "decisions"}
    assert set(listed) == pages - {"README.md", "start.md"} | MADE | MADE_FROM_CODE
    assert settings["strict"] is True


def test_the_pictures_are_what_their_source_draws() -> None:
    for path, svg in pictures().items():
        assert path.read_text(encoding="utf-8") == svg, f"run: python tools/site/sequences.py ({path.name})"


class Page(HTMLParser):
    """The links, resources and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}
        if tag == "a" and (link := given.get("href")):
            self.links.append(link)
        elif tag in ("script", "img", "link") and (source := given.get("src") or given.get("href")):
            self.resources.append(source)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = clone(tmp_path_factory.mktemp("clone"))
    run("make", "docs", f"PYTHON={sys.executable}", cwd=tree, within_s=800)
    return tree / "site"


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_every_link_of_the_site_leads_somewhere_and_nothing_comes_from_elsewhere(site: Path) -> None:
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert len(pages) > 60
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its addresses are from the root of a server
        for resource in page.resources:
            assert not urlsplit(resource).scheme or resource.startswith("data:"), f"{path}: {resource}"
            assert resource.startswith("data:") or (path.parent / unquote(resource)).resolve().exists(), (
                resource
            )
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or link.startswith("javascript"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{path.relative_to(site)}: {link}"
            if parts.fragment and not parts.fragment.startswith("__"):
                assert unquote(parts.fragment) in pages[target].anchors, f"{path.relative_to(site)}: {link}"


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_search_works_without_a_server_and_without_a_network(site: Path) -> None:
    asked: list[str] = []
    with chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_S * 1000)
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "index.html").as_uri())
        page.get_by_placeholder("Search").click()
        page.get_by_placeholder("Search").press_sequentially("watermark")
        page.locator(".md-search-result__item", has_text="Glossary").first.wait_for()
        page.goto((site / "protocol" / "five-minutes.html").as_uri())
        loaded = "() => [...document.images].every(image => image.complete && image.naturalWidth > 0)"
        page.wait_for_function(loaded)
        page.goto((site / "reference" / "python-api.html").as_uri())
        page.get_by_role("heading", name="caught_up").first.wait_for()
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
