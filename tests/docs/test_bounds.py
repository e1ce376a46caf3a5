"""Numbers in the documentation are those of the code: defaults of settings, and bounds that are fixed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.bounds import FIXED, SENTENCES, written
from unisono.cli.setting_fields import FIELDS

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "docs").rglob("*.md")
    if path.parent.name not in ("reference", "decisions")  # made from the code; about their day
)

NUMBER = r"([0-9][0-9,]*(?:\.[0-9]+)?(?: (?:KiB|MiB|GiB|s\b))?)"
BESIDE = re.compile(
    rf"`([a-z_]+)`(?: \(|, |, `[a-z_]+` \| |\ \| ){NUMBER}|{NUMBER}(?: levels)? (?:\(|\| )`([a-z_]+)`"
)
"""A setting with a number beside it: in brackets, after a comma, or in the next column; or the other way round."""


@pytest.mark.parametrize("page", SENTENCES)
def test_a_page_has_the_numbers_of_the_code(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [sentence for sentence in SENTENCES[page] if sentence not in text] == []


@pytest.mark.req("LIM-05")
def test_every_row_of_the_fixed_bounds_is_made_from_the_code() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    table = page.split("These are fixed:\n\n")[1].split("\n\n")[0].splitlines()[2:]
    assert len(table) == len(FIXED)
    assert [row for row, start in zip(table, FIXED, strict=True) if not row.startswith(start)] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_number_beside_a_setting_is_its_default(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for found in BESIDE.finditer(text):
        name, number = found[1] or found[4], found[2] or found[3]
        if name in FIELDS:
            default = written(name, FIELDS[name].default)
            assert number.replace(",", "") == default, (
                f"{page}: `{name}` is {default} by default, not {number}"
            )


def test_the_defaults_of_all_bounds_are_looked_at() -> None:
    """The pattern above is not blind: it sees the tables of operations.md."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    seen = {found[1] or found[4] for found in BESIDE.finditer(page)} & set(FIELDS)
    assert {name for name in FIELDS if name.startswith("max_")} - {"max_archive_cache_bytes"} <= seen
    assert {"handshake_timeout_s", "stall_timeout_s", "rule_timeout_s", "snapshot_every_events"} <= seen
