"""How to install an optional part, as a command that works where this program is installed."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[2]
"""The clone, where the program runs from one; otherwise some directory of the interpreter."""


def install_command(extra: str, *, root: Path = _ROOT) -> str:
    """A line for a shell in the current directory. In a clone it keeps the versions of constraints.txt."""
    python = shlex.quote(_from_here(Path(sys.executable)))
    constraints = root / "constraints.txt"
    if not ((root / "pyproject.toml").is_file() and constraints.is_file()):
        return f"{python} -m pip install 'unisono[{extra}]'"
    constraint = shlex.quote(_from_here(constraints))
    return f"{python} -m pip install --constraint {constraint} --editable '{_from_here(root)}[{extra}]'"


def _from_here(path: Path) -> str:
    """The path without what leads to the current directory, where it is below that."""
    here = Path.cwd()
    return os.fspath(path.relative_to(here) if path.is_relative_to(here) else path)
