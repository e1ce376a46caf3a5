"""What is published: how large it is, and that nothing names a host or a dependency."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.js.node import CLIENTS, run

CORE_BYTES_MAX = 12_000
STORAGE_BYTES_MAX = 20_000
PARTS_BYTES_MAX = {
    "tree": 4_800,
    "event": 2_400,
    "presence": 1_200,
    "transactions": 700,
    "renewal": 900,
    "history": 1_100,
}
UNDO_BYTES_MAX = 2_600
"""Compressed with Brotli, as servers of static files send it: what a page loads before the client starts."""


def test_the_client_is_small(built: Path) -> None:
    sizes = json.loads(run(str(built / "packages/client/test/size.mjs")).stdout)
    assert sizes["core"]["brotli"] <= CORE_BYTES_MAX, sizes
    assert sizes["storage"]["brotli"] <= STORAGE_BYTES_MAX, sizes
    assert 0 < sizes["storage"]["later"] <= 1_000, (
        "the store in memory is loaded where storage is refused only"
    )
    for part, most in PARTS_BYTES_MAX.items():
        assert sizes[part]["brotli"] - sizes["storage"]["brotli"] <= most, sizes
    assert sizes["undo"]["brotli"] - sizes["tree"]["brotli"] <= UNDO_BYTES_MAX, sizes


def test_the_lockfile_names_no_host() -> None:
    assert not re.search(r"https?://", (CLIENTS / "package-lock.json").read_text())


def test_versions_of_the_tools_are_exact_and_the_packages_have_no_dependencies() -> None:
    tools = json.loads((CLIENTS / "package.json").read_text())["devDependencies"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in tools.values()), tools
    for package in CLIENTS.glob("packages/*/package.json"):
        assert "dependencies" not in json.loads(package.read_text()), package
