"""Fenced blocks of a Markdown page, and what their opening line says is to be done with them.

    ```console            commands (`$ `, continued by `> `) and what they print, to the end of each command
    ```console server     the same in a terminal of that name, where the last command may go on running; a block
                          without a command shows what it printed since
    ```python file=x.py   is written to x.py in the directory where the page's commands run
    ```python append=x.py is added to the end of it
    ```python excerpt=F   stands word for word in the repository's file F
    ```json example=NAME  is recorded from a server (see `conversation`)

In output `…` stands for any text within a line, and a line of only `…` for any lines or none. Blank lines do not
count. Blocks of other languages are for the eye.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

_FENCE = re.compile(r"^```(\S+)(?: ([^\n]*))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(msgspec.Struct, frozen=True):
    """One fenced block; `note` is what follows its language."""

    language: str
    note: str
    text: str
    line: int

    def value(self, key: str) -> str | None:
        """What follows `key=` in the note."""
        return self.note.removeprefix(f"{key}=") if self.note.startswith(f"{key}=") else None


class Step(msgspec.Struct, frozen=True):
    """A command and what it prints; without a command, what the running one prints further."""

    command: str | None
    output: list[str]


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for fence in _FENCE.finditer(text):
        line = text.count("\n", 0, fence.start()) + 1
        yield Block(fence[1], fence[2] or "", fence[3], line)


def steps(text: str) -> list[Step]:
    """A console block, command by command."""
    found: list[Step] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(Step(line[2:], []))
        elif line.startswith("> ") and found and found[-1].command and not found[-1].output:
            found[-1] = Step(f"{found[-1].command}\n{line[2:]}", [])
        elif line.strip():
            if not found:
                found.append(Step(None, []))
            found[-1].output.append(line)
    return found


def pattern(output: list[str]) -> re.Pattern[str]:
    """What matches lines like these, each ended by a line break."""
    parts = []
    for line in output:
        if line.strip() == "…":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(".*".join(re.escape(part) for part in line.rstrip().split("…")) + r"\s*?\n")
    return re.compile("".join(parts))
