"""What the shell completes, asked as the shell asks it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNISONO = Path(sys.executable).parent / "unisono"


def completed(*words: str) -> set[str]:
    environment = os.environ | {
        "_UNISONO_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["unisono", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run([UNISONO], env=environment, capture_output=True, text=True, check=True)
    return {line.partition(",")[2] for line in done.stdout.splitlines()}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["do"], {"doctor"}),
        (["lake", "aud"], {"audit"}),
        (["model", "new", "--like", "o"], {"outline"}),
        (["serve", "--max-conn"], {"--max-connections"}),
    ],
)
def test_commands_options_and_values_are_completed(words: list[str], expected: set[str]) -> None:
    assert completed(*words) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_documented_line_gives_a_script(shell: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "install.md").read_text(encoding="utf-8")
    assert f"_UNISONO_COMPLETE={shell}_source unisono" in page
    environment = os.environ | {"_UNISONO_COMPLETE": f"{shell}_source"}
    done = subprocess.run([UNISONO], env=environment, capture_output=True, text=True)
    assert "_UNISONO_COMPLETE" in done.stdout, done.stderr
    if shell == "bash" and shutil.which("bash"):
        assert subprocess.run(["bash", "-n"], input=done.stdout, text=True).returncode == 0
