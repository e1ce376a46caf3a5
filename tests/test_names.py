"""Names: one public class of each name, so that a name means one thing wherever it is read."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import unisono

ROOT = Path(unisono.__file__).parent


def test_no_two_public_classes_have_one_name() -> None:
    places = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path.relative_to(ROOT).as_posix())
    assert len(places) > 300
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_table_is_read_by_threads_that_call_python() -> None:
    """delta-rs' readers for Arrow do, and a thread that calls Python while the process ends aborts it."""
    calls = ("to_pyarrow_table(", "to_pyarrow_dataset(", "to_pandas(")
    texts = {path: path.read_text("utf-8") for path in ROOT.rglob("*.py")}
    texts |= {path: path.read_text("utf-8") for path in (ROOT.parent.parent / "docs").rglob("*.md")}
    assert len(texts) > 350
    assert [
        path for path, text in texts.items() for call in calls if call in text and "deltalake" in text
    ] == []
