"""What is published: how large it is, and that nothing names a host or a dependency."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.js.node import CLIENTS, run

CORE_BYTES_MAX = 12_000
STORAGE_BYTES_MAX = 22_300
MODEL_BYTES_MAX = 5_200
PRESENCE_BYTES_MAX = 1_300
"""Compressed with Brotli, as servers of static files send it."""


def test_the_client_is_small(built: Path) -> None:
    sizes = json.loads(run(str(built / "packages/client/test/size.mjs")).stdout)
    assert sizes["core"]["brotli"] <= CORE_BYTES_MAX, sizes
    assert sizes["storage"]["brotli"] <= STORAGE_BYTES_MAX, sizes
    for part, most in (
        ("tree", MODEL_BYTES_MAX),
        ("event", MODEL_BYTES_MAX),
        ("presence", PRESENCE_BYTES_MAX),
    ):
        assert sizes[part]["brotli"] - sizes["storage"]["brotli"] <= most, sizes


def test_the_lockfile_names_no_host() -> None:
    assert not re.search(r"https?://", (CLIENTS / "package-lock.json").read_text())


def test_versions_of_the_tools_are_exact_and_the_packages_have_no_dependencies() -> None:
    tools = json.loads((CLIENTS / "package.json").read_text())["devDependencies"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in tools.values()), tools
    for package in CLIENTS.glob("packages/*/package.json"):
        assert "dependencies" not in json.loads(package.read_text()), package
