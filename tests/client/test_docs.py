"""The page about this client is a notebook that runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.server.harness import running
from tests.docs.blocks import blocks

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "python-client.md"


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    with running(tmp_path / "unisono-data", "--dev") as server:
        (tmp_path / "unisono-data" / "dev-secret").write_bytes(server.secret_file.read_bytes())
        cells: dict[str, Any] = {"__name__": "notebook", "print": lambda *words: None}
        for block in blocks(PAGE):
            if block.language == "python":
                text = block.text.replace("ws://127.0.0.1:8040/sync", server.url)
                code = compile("\n" * block.line + text, str(PAGE), "exec")
                exec(code, cells)


def test_the_page_names_every_option_there_is_to_know() -> None:
    """Everything public of the package is on the page, or is a detail of something that is."""
    page = PAGE.read_text()
    for name in ("SyncClient", "connect", "InvalidEvent", "StoreInUse", "Options", "Committed"):
        assert re.search(rf"\b{name}\b", page), name
