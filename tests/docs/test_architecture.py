"""docs/architecture.md names files and functions: each of them exists, and every room is named."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import unisono

ROOT = Path(unisono.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"

NAMED = re.compile(r"`([\w/]+\.py)`(?:\s·\s`([\w.]+)`)?")


def test_files_and_functions_exist() -> None:
    named = NAMED.findall(PAGE.read_text("utf-8"))
    assert sum(1 for _, name in named if name) > 40
    missing = [
        f"{path} {name}".strip()
        for path, name in named
        if not (ROOT / path).is_file() or (name and name not in _definitions(ROOT / path))
    ]
    assert missing == []


def test_every_room_is_described() -> None:
    rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"samples"}
    described = set(re.findall(r"^\| `(\w+)/` \|", PAGE.read_text("utf-8"), re.MULTILINE))
    assert described == rooms


def _definitions(path: Path) -> set[str]:
    names = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
            names.update(
                f"{node.name}.{below.name}"
                for below in node.body
                if isinstance(below, ast.FunctionDef | ast.AsyncFunctionDef)
            )
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
    return names
