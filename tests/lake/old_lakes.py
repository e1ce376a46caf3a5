"""Makes the lakes of past layouts that `test_old_lakes.py` reads.

    python -m tests.lake.old_lakes

A lake is made once, by the program of its time, and then kept: it shows what users have. It has 60 events in two
exports, snapshots after each, and one erased event; `events.json` beside its tables has its rows.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import closing
from pathlib import Path

from tests.lake.lakes import HERE
from tests.pipeline.history import append
from unisono.lake.lake import Lake
from unisono.lake.table import LAYOUT
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.erase.job import erase, plan
from unisono.pipeline.jobs.erase.select import Selector
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.past.job import state_at
from unisono.pipeline.jobs.snapshot.job import snapshot
from unisono.pipeline.open_log import sqlite_uri
from unisono.store.sqlite.log import SqliteLog

DATA = Path(__file__).with_name("data")
EVENTS = 60
COLUMNS = ("committed_id", "id", "client_id", "partitions", "event", "type", "status_updated_at", "author")


def make(folder: Path) -> None:
    store, lake, model = sqlite_uri(folder / "data"), Lake.at(str(folder / "lake")), ShippedModel.open()
    with closing(SqliteLog.open(folder / "data")) as log:
        records = append(log, EVENTS)
    lake.make(buckets=2)
    for upto in (EVENTS // 2, EVENTS):
        export(HERE, store, lake, to=upto)
        snapshot(HERE, lake, model)
    erase(HERE, store, lake, plan(HERE, store, lake, Selector("id", (records[9].id,))))
    names = sorted({name for record in records for name in record.partitions})
    content = {
        "events": [row for batch in lake.scan_arrow(columns=COLUMNS) for row in batch.to_pylist()],
        "states": {name: state_at(lake, name, model).state for name in names},
    }
    (folder / "lake" / "events.json").write_text(json.dumps(content))
    shutil.make_archive(str(DATA / f"layout-{LAYOUT}"), "zip", folder / "lake")


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        make(Path(temporary))
