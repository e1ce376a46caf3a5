"""What is written into a directory survives power loss: files, and every directory on the way to them."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, LOG, SNAPSHOTS, Storage
from unisono.pipeline.service.lease import TABLE, Lease


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """What was synced, with the files that it had then."""
    found: set[Path] = set()
    sync = os.fsync

    def noting(descriptor: int) -> None:
        sync(descriptor)
        place = Path(f"/proc/self/fd/{descriptor}").readlink()
        found.update([place, *place.iterdir()] if place.is_dir() else [])

    monkeypatch.setattr(os, "fsync", noting)
    return found


def test_a_new_lake_in_new_directories(synced: set[Path], tmp_path: Path) -> None:
    place = tmp_path / "some" / "where" / "lake"
    Lake.at(str(place)).make(buckets=4)
    assert synced >= {tmp_path / "some", tmp_path / "some" / "where", place}
    assert synced >= {place / LOG, place / BY_PARTITION, place / LOG / "_delta_log"}


def test_a_file_in_new_directories(synced: set[Path], tmp_path: Path) -> None:
    lake = Lake.at(str(tmp_path / "lake"))
    lake.make(buckets=4)
    (tmp_path / "lake" / SNAPSHOTS).mkdir()
    synced.clear()
    path = "model_version=1/bucket=3/section-64-3/x.parquet"
    lake.storage.write(SNAPSHOTS, path, pa.py_buffer(b"x"))
    table = tmp_path / "lake" / SNAPSHOTS
    assert synced >= {table / path, *(table / above for above in list(Path(path).parents)[:-1])}


def test_the_lease_of_a_service(synced: set[Path], tmp_path: Path) -> None:
    lease = Lease(Storage.at(str(tmp_path)))
    lease.acquire()
    commits = sorted((tmp_path / TABLE / "_delta_log").glob("*.json"))
    assert commits[-1] in synced
    lease.release()
