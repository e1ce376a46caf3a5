"""The page about the terminal client says what the program does."""

from __future__ import annotations

import re
from pathlib import Path

from textual.binding import Binding

from tests.behaviour.server.harness import running
from tests.client.running import asynchronous
from tests.terminal.picture import PICTURE, drawn, words
from unisono.samples import sample_model
from unisono.terminal.app import OutlineApp
from unisono.terminal.outline_view import OutlineView
from unisono.terminal.panels import Confirm, RejectedPanel, TitleLine

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "terminal-client.md"
WRITTEN = {"greater_than_sign": ">", "less_than_sign": "<"}


def test_every_key_is_on_the_page_and_no_other() -> None:
    keys: set[str] = set()
    for holder in (OutlineApp, OutlineView, RejectedPanel, TitleLine, Confirm):
        for binding in holder.__dict__["BINDINGS"]:
            assert isinstance(binding, Binding)
            keys |= {WRITTEN.get(key, key) for key in binding.key.split(",")}
    section = PAGE.read_text(encoding="utf-8").split("## Keys")[1].split("## ")[0]
    assert set(re.findall(r"`([^`]+)`", section)) == keys


@asynchronous
async def test_the_picture_shows_what_the_screen_shows(tmp_path: Path) -> None:
    with running(tmp_path / "d", "--model", str(sample_model()), "--access-default", "allow") as fresh:
        told = "run `python -m tests.terminal.picture`"
        assert words(await drawn(fresh, "welcome")) == words(PICTURE.read_text(encoding="utf-8")), told
