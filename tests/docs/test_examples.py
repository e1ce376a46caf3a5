"""The examples of the documentation, done for real: commands, programs and what they print."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.docs.blocks import Block, blocks, pattern, steps
from tests.docs.terminals import Ports, Terminal

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
PLAYED = [page for page in PAGES if any(block.language == "console" for block in blocks(page))]

LONG = {
    "docs/pipeline-audit.md",
    "docs/pipeline-erase.md",
    "docs/pipeline-import.md",
    "docs/pipeline-revalidate.md",
    "docs/pipeline-snapshots.md",
}
"""A minute each, of which Spark's starts are the most: `make soak` plays them."""

MAKE_RUN = ".venv/bin/unisono serve --dev"


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def plays(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Path, Future[None]]]:
    """The selected pages, being played: two at a time, since most of it is waiting for processes to start."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    selected = {item.callspec.params["page"] for item in items if "plays" in item.fixturenames}
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield {
            page: pool.submit(_play, page, tmp_path_factory.mktemp("page"))
            for page in PLAYED
            if page in selected
        }


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.soak] if _name(page) in LONG else [], id=_name(page))
        for page in PLAYED
    ],
)
def test_the_examples_of_a_page_do_what_it_says(page: Path, plays: dict[Path, Future[None]]) -> None:
    plays[page].result()


def _play(page: Path, where: Path) -> None:
    (where / ".venv").symlink_to(sys.prefix)
    ports = Ports()
    terminals: dict[str, Terminal] = {}
    try:
        for block in blocks(page):
            try:
                _do(block, where, ports, terminals)
            except AssertionError as error:
                raise AssertionError(f"{_name(page)}:{block.line}: {error}") from None
    finally:
        for terminal in terminals.values():
            terminal.close()


def _do(block: Block, where: Path, ports: Ports, terminals: dict[str, Terminal]) -> None:
    for key, mode in (("file", "w"), ("append", "a")):
        if (file := block.value(key)) is not None:
            with (where / file).open(mode, encoding="utf-8") as opened:
                opened.write(ports.put_in(block.text))
    if block.language != "console":
        return
    terminal = terminals.get(block.note)
    if terminal is None:
        terminal = terminals[block.note] = Terminal(where, ports)
    todo = steps(block.text.replace("$ make run\n", f"$ {MAKE_RUN}\n"))
    assert todo, "there is nothing in this block"
    for step in todo:
        terminal.play(step, to_the_end=not block.note)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_what_a_page_quotes_stands_there(page: Path) -> None:
    for block in blocks(page):
        source = block.value("excerpt")
        if source is not None:
            text = (ROOT / source).read_text(encoding="utf-8")
            assert block.text.strip("\n") in text, f"{_name(page)}:{block.line}: not in {source}"


PLAYED_ELSEWHERE = {"docs/howto/python-client.md": "tests/client/test_docs.py"}
"""Pages whose programs another test runs, all of them."""


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_no_program_goes_untested(page: Path) -> None:
    elsewhere = PLAYED_ELSEWHERE.get(_name(page))
    if elsewhere is not None:
        assert Path(_name(page)).name in (ROOT / elsewhere).read_text(encoding="utf-8")
        return
    for block in blocks(page):
        told = f"{_name(page)}:{block.line}"
        assert block.language not in ("sh", "bash", "shell"), f"{told}: write it as ```console"
        if block.language == "python":
            played = any(block.value(key) for key in ("file", "append", "excerpt"))
            assert played, f"{told}: say file=, append= or excerpt="


def test_make_run_is_what_the_tour_plays() -> None:
    printed = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "run"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout.splitlines()[-1] == MAKE_RUN


def test_dots_stand_for_what_differs() -> None:
    wanted = pattern(["first …", "…", "last"])
    assert wanted.fullmatch("first line\nmore\nand more\nlast\n")
    assert wanted.fullmatch("first \nlast\n")
    assert not wanted.fullmatch("first line\nmore\n")
    assert not wanted.fullmatch("first line\nlast but one\n")


def test_a_console_block_is_read_as_meant() -> None:
    (shown, first, second) = steps("still\n$ one\n> two\nout\n\n> quoted\n$ three\n")
    assert (shown.command, shown.output) == (None, ["still"])
    assert (first.command, first.output) == ("one\ntwo", ["out", "> quoted"])
    assert (second.command, second.output) == ("three", [])
