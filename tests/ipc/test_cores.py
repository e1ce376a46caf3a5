"""The cores that a process may use: those of its affinity, or less where a container has a quota."""

from __future__ import annotations

from pathlib import Path

import pytest

from unisono.ipc.cores import usable_cores


@pytest.mark.parametrize("text", ["max 100000\n", "", "nonsense", "100000 0", "100000"])
def test_without_a_quota_all_cores_count(tmp_path: Path, text: str) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert usable_cores(tmp_path / "cpu.max") == usable_cores(tmp_path / "missing") >= 1


def test_a_quota_bounds_them(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert usable_cores(tmp_path / "cpu.max") == 0.5
