"""What the wheel consists of: every file of the package, the command, and the extras by their names."""

from __future__ import annotations

import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import unisono
from tests.package.building import ROOT, build_wheel, clone, tracked


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(clone(tmp_path_factory.mktemp("clone")))


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        packed = {name for name in opened.namelist() if ".dist-info/" not in name}
        for name in tracked("src"):
            packed_name = name.removeprefix("src/")
            assert packed_name in packed, f"{name} is not in the wheel: see MANIFEST.in"
            assert opened.read(packed_name) == (ROOT / name).read_bytes(), name
        assert packed == {name.removeprefix("src/") for name in tracked("src")}


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    with zipfile.ZipFile(wheel) as opened:
        names = {Path(name).name: name for name in opened.namelist() if ".dist-info/" in name}
        metadata = message_from_bytes(opened.read(names["METADATA"]))
        entry_points = opened.read(names["entry_points.txt"]).decode()
    assert metadata["Version"] == unisono.__version__ == declared["version"]
    assert set(metadata.get_all("Provides-Extra", ())) == set(declared["optional-dependencies"])
    assert entry_points.split() == ["[console_scripts]", "unisono", "=", declared["scripts"]["unisono"]]
    assert "LICENSE" in names
