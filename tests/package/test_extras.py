"""The line that installs an optional part fits the place where the program runs."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.package.building import ROOT
from unisono.extras import install_command


def test_in_a_clone_the_line_installs_the_clone_with_its_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "executable", os.fspath(ROOT / ".venv/bin/python"))
    line = ".venv/bin/python -m pip install --constraint constraints.txt --editable '.[postgres]'"
    assert install_command("postgres") == line


def test_from_elsewhere_it_names_the_clone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(install_command("archive"))
    assert words[0] == sys.executable
    assert words[-1] == f"{ROOT}[archive]"
    assert Path(words[words.index("--constraint") + 1]).is_file()


def test_of_an_installed_package_the_line_adds_the_extra(tmp_path: Path) -> None:
    words = shlex.split(install_command("terminal", root=tmp_path))
    assert words[1:] == ["-m", "pip", "install", "unisono[terminal]"]
