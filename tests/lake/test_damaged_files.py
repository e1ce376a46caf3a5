"""A file of a lake that is cut: whatever opens it says which one it is, and what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.lake.lakes import export_to
from tests.pipeline.history import make_store
from unisono.lake.errors import LakeUnusable
from unisono.lake.file_checks import open_checked
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION


def test_a_cut_file_is_named(tmp_path: Path) -> None:
    make_store(tmp_path / "data", 60)
    lake = Lake.at(str(tmp_path / "lake"))
    export_to(lake, tmp_path / "data")
    (file,) = lake.view().partition_files
    path = Path(lake.storage.uri(BY_PARTITION, file.path))
    whole = path.read_bytes()
    for size in (len(whole) // 2, len(whole) - 1, 3, 0):
        path.write_bytes(whole[:size])
        named = re.escape(f"{BY_PARTITION}/{file.path} is damaged")
        with (
            pytest.raises(LakeUnusable, match=f"^{named}.*run `unisono lake audit`$"),
            open_checked(lake.storage, file),
        ):
            pass
    path.unlink()
    with pytest.raises(FileNotFoundError), open_checked(lake.storage, file):
        pass
