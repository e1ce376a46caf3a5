"""Names and sizes: one public class of each name, one idea a file."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import unisono

ROOT = Path(unisono.__file__).parent
REPOSITORY = ROOT.parent.parent

LINES_MAX = 400
"""A longer file wants to be two, each with one idea."""


LOGGING = {f"log.{level}" for level in ("debug", "info", "warning", "error", "critical", "exception")}


def test_no_file_is_longer_than_one_idea_needs() -> None:
    """Without exception, in the program and in its tests."""
    paths = [
        path for room in (ROOT, REPOSITORY / "tests", REPOSITORY / "soak") for path in room.rglob("*.py")
    ]
    assert len(paths) > 900
    lines = {path.relative_to(REPOSITORY).as_posix(): path.read_bytes().count(b"\n") for path in paths}
    assert {name: count for name, count in lines.items() if count > LINES_MAX} == {}


def test_no_two_public_classes_have_one_name() -> None:
    places = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path.relative_to(ROOT).as_posix())
    assert len(places) > 300
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


SERVER_ROOMS = ("authority", "console", "front", "ipc", "node", "reader", "store")


def test_every_log_line_of_the_server_has_fields() -> None:
    """What a line puts into its text is also a field of JSON logs."""
    lines, bare = 0, []
    for path in (path for room in SERVER_ROOMS for path in sorted((ROOT / room).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in LOGGING:
                lines += 1
                if len(node.args) > 1 and not any(keyword.arg == "extra" for keyword in node.keywords):
                    bare.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert lines > 30
    assert bare == []


def test_no_table_is_read_by_threads_that_call_python() -> None:
    """delta-rs' readers for Arrow do, and a thread that calls Python while the process ends aborts it."""
    calls = ("to_pyarrow_table(", "to_pyarrow_dataset(", "to_pandas(")
    texts = {path: path.read_text("utf-8") for path in ROOT.rglob("*.py")}
    texts |= {path: path.read_text("utf-8") for path in (ROOT.parent.parent / "docs").rglob("*.md")}
    assert len(texts) > 350
    assert [
        path for path, text in texts.items() for call in calls if call in text and "deltalake" in text
    ] == []
