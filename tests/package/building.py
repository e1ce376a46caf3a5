"""The tree as a clone has it, in a directory of its own, and what is built from it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path, within_s: float = 240) -> str:
    """A command to its end; what it printed. Fails with its complaint."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=within_s)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def tracked(under: str = ".") -> list[str]:
    """The files of the repository, and those that would be added to it."""
    listed = run(
        "git", "ls-files", "--cached", "--others", "--exclude-standard", "--", under, cwd=ROOT
    ).splitlines()
    return [name for name in listed if (ROOT / name).is_file()]


def clone(to: Path) -> Path:
    """A copy of the tree without anything that was built or installed in it."""
    for name in tracked():
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)
        shutil.copymode(ROOT / name, target)
    return to


def build_wheel(tree: Path) -> Path:
    """The wheel alone, built by the environment of the tests."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    run(*pip, "wheel", "--no-deps", "--wheel-dir", "dist", "./", cwd=tree)
    (wheel,) = (tree / "dist").glob("*.whl")
    return wheel
