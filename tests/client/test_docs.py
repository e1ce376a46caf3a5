"""The page about this client is a notebook that runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import unisono.client
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


DETAILS = {"BlockingDraft", "BlockingStream", "Draft", "Stream"}
"""What calls on the page return."""


def test_the_page_names_everything_public() -> None:
    page = PAGE.read_text()
    assert {name for name in unisono.client.__all__ if not re.search(rf"\b{name}\b", page)} <= DETAILS
