"""What `jobs.py` runs in each tree: makes a history of outlines. Uses only what both revisions have."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.pipeline.outline import Outlines, append_outlines, outline_model

from unisono.store.cluster import ModelBundle

try:
    from unisono.store.sqlite.log import SqliteLog
except ModuleNotFoundError:  # before the store had a folder for each engine
    from unisono.store.sqlite import SqliteLog  # type: ignore[attr-defined,no-redef]

PORTION = 20_000


def make(directory: Path, events: int, partitions: int) -> None:
    log = SqliteLog.open(directory)
    model = outline_model()
    log.record_model(ModelBundle(model.version or 0, model.digest, dict(model.files)))
    outlines = Outlines("benchmark", partitions, skewed=False)
    for made in range(0, events, PORTION):
        append_outlines(log, outlines, min(PORTION, events - made))
    log.close()


if __name__ == "__main__":
    make(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
