"""Lakes that earlier programs made are read, and go on (see `old_lakes.py`)."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.lake.lakes import HERE, compact
from tests.lake.old_lakes import COLUMNS, DATA, EVENTS
from unisono.lake.cold.archive import CACHE_BYTES
from unisono.lake.cold.pages import LakePages
from unisono.lake.errors import LakeUnusable
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, ERASURES, LOG, SNAPSHOTS
from unisono.lake.table import LAYOUT
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.erase.erasure_table import erasures
from unisono.pipeline.jobs.past.job import state_at
from unisono.pipeline.jobs.snapshot.drop import drop_snapshots
from unisono.pipeline.jobs.snapshot.job import snapshot

OPEN = ShippedModel.open()


def unpacked(layout: int, folder: Path) -> tuple[Lake, dict[str, Any]]:
    shutil.unpack_archive(DATA / f"layout-{layout}.zip", folder)
    return Lake.at(str(folder)), json.loads((folder / "events.json").read_text())


def rows_of(lake: Lake) -> list[dict[str, Any]]:
    return [row for batch in lake.scan_arrow(columns=COLUMNS) for row in batch.to_pylist()]


def test_every_layout_has_a_lake() -> None:
    assert [path.stem for path in sorted(DATA.glob("*.zip"))] == [
        f"layout-{number}" for number in range(1, LAYOUT + 1)
    ]


@pytest.mark.parametrize("layout", range(1, LAYOUT + 1))
def test_an_old_lake_is_read_and_goes_on(layout: int, tmp_path: Path) -> None:
    lake, content = unpacked(layout, tmp_path)
    for name in (LOG, BY_PARTITION, SNAPSHOTS, ERASURES):
        assert lake.table(name).description().layout == layout
    assert rows_of(lake) == content["events"]
    assert [row.committed_id for row in erasures(lake)] == [10]
    for name, state in content["states"].items():
        assert state_at(lake, name, OPEN).state == state
        own = [event for event in content["events"] if name in event["partitions"]]
        with closing(LakePages(lake, CACHE_BYTES)) as pages:
            page = pages.page([name], 0, EVENTS, limit=EVENTS, bytes_max=1 << 20)
        assert [record.committed_id for record in page.records] == [event["committed_id"] for event in own]
        assert [record.event.decode() for record in page.records] == [event["event"] for event in own]
    compact(lake)
    assert drop_snapshots(HERE, lake, list(content["states"])[:3])
    assert snapshot(HERE, lake, OPEN).partitions == 3
    assert rows_of(lake) == content["events"]
    assert {name: state_at(lake, name, OPEN).state for name in content["states"]} == content["states"]


def test_a_lake_of_a_later_layout_is_refused(tmp_path: Path) -> None:
    lake, _ = unpacked(LAYOUT, tmp_path)
    commit = tmp_path / LOG / "_delta_log" / f"{0:020d}.json"
    commit.write_text(commit.read_text().replace(f'\\"layout\\":{LAYOUT}', f'\\"layout\\":{LAYOUT + 1}'))
    with pytest.raises(LakeUnusable, match=f"has layout {LAYOUT + 1}, this program knows {LAYOUT}"):
        lake.view()
