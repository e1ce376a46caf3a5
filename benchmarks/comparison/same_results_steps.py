"""What `same_results.py` runs in each tree: makes the cases, or reads them and prints what was found as JSON.

Uses only what both revisions have.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from tests.lake.lakes import HERE, spreading
from tests.pipeline.corruptions import GROUPS
from tests.pipeline.history import make_store
from tests.pipeline.lake_corruptions import BUCKETS, HALF, SPREAD_TO
from tests.pipeline.planting import Planter

from unisono.cli.main import main as unisono
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION
from unisono.pipeline.job_model import ShippedModel
from unisono.pipeline.jobs.audit.job import AuditOptions, audit
from unisono.pipeline.jobs.compact.job import ROWS_PER_FILE, compact_table
from unisono.pipeline.jobs.export.job import export
from unisono.pipeline.jobs.past.job import states_at
from unisono.pipeline.jobs.snapshot.job import latest, snapshot
from unisono.pipeline.maintain.embedded import open_maintainer
from unisono.pipeline.open_log import sqlite_uri
from unisono.pipeline.spark.session import session
from unisono.store.sqlite.log import SqliteLog

EVENTS = 3_000
"""Of the small cases, which the damage counts on."""

OPEN = ShippedModel.open()
_UNIQUE = re.compile("[0-9a-f]{32}(?=[.]parquet)")
WHOLE = ("sound", "large", "pruned", "erased")


def make(place: Path, events: int) -> None:
    """A sound history, a larger one, a pruned and an erased one, and copies to be damaged."""
    for name, count in (("sound", EVENTS), ("large", events)):
        make_store(place / name / "data", count)
        store, lake = sqlite_uri(place / name / "data"), Lake.at(str(place / name / "lake"))
        lake.make(BUCKETS)
        export(HERE, store, lake, to=HALF, events_per_file=600)
        snapshot(HERE, lake, OPEN)
        export(HERE, store, lake, to=SPREAD_TO, events_per_file=600)
        with spreading():
            compact_table(HERE, lake, BY_PARTITION, ROWS_PER_FILE)
        export(HERE, store, lake, events_per_file=600 if name == "sound" else 100_000)
        snapshot(HERE, lake, OPEN)
    for name in ("pruned", "erased"):
        shutil.copytree(place / "sound", place / name)
    _prune(place / "pruned", EVENTS // 2)
    client = "client-3"
    arguments = ["lake", "erase", "--data", str(place / "erased/data"), "--lake", str(place / "erased/lake")]
    unisono([*arguments, "--client", client, "--yes", "--quiet"], standalone_mode=False)
    for name in GROUPS:
        shutil.copytree(place / "sound", place / f"damaged {name}")


def damage(folder: Path, name: str) -> None:
    """Each revision damages its own copy: a log can only be upgraded before."""
    group = GROUPS[name]
    if group.pruned_to:
        _prune(folder, group.pruned_to)
    planter = Planter(Lake.at(str(folder / "lake")))
    for plant in group.cases.values():
        plant(planter, folder / "data")
    if name != "files":
        planter.commit()


def _prune(folder: Path, upto: int) -> None:
    maintainer = open_maintainer(sqlite_uri(folder / "data"))
    maintainer.set_archive(str(folder / "lake"))
    while maintainer.prune_step(upto):
        pass
    maintainer.close()


def read(place: Path) -> dict[str, Any]:
    spark = session("local[2]", "same results", quick=True)
    # Jobs took a context before they were DataFrames.
    runner: Any = spark if find_spec("unisono.pipeline.spark.executors") else spark.sparkContext
    found: dict[str, Any] = {}
    for folder in sorted(path for path in place.iterdir() if path.is_dir()):
        lake, name = Lake.at(str(folder / "lake")), folder.name
        SqliteLog.open(folder / "data").close()  # a log of an older revision is upgraded
        group = None if name in WHOLE else GROUPS[name.removeprefix("damaged ")]
        if group is not None:
            damage(folder, name.removeprefix("damaged "))
        store = sqlite_uri(folder / "data") if group is None or group.with_store else None
        options = AuditOptions(sample=None if group is None else group.sample)
        report = msgspec.to_builtins(audit(runner, lake, store, options))
        for volatile in ("seconds", "lake", "store"):
            report.pop(volatile)
        for step in report["checked"]:
            step.pop("seconds", None)
        text = json.dumps(report).replace(str(folder), "")
        found[f"{name}: audit"] = json.loads(_UNIQUE.sub("…", text))
        if name in WHOLE:
            head = lake.head()
            for at in (head // 3, head):
                rows = states_at(spark, lake, at, model=OPEN).collect()
                found[f"{name}: states at {at}"] = _digest(sorted(map(tuple, rows)))
            for when in ("as they are", "folded again"):
                states = [
                    (r.partition, r.committed_id, r.state, r.events, r.skipped) for r in latest(lake, 0)
                ]
                found[f"{name}: snapshots {when}"] = _digest(sorted(states))
                snapshot(runner, lake, OPEN, rebuild=True)
    spark.stop()
    return found


def _digest(rows: list[Any]) -> list[Any]:
    return [len(rows), hashlib.sha256(repr(rows).encode()).hexdigest()]


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        Path(sys.argv[3]).write_text(json.dumps(read(Path(sys.argv[2])), indent=1))
