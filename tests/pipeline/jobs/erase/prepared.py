"""A log and a lake to erase from, made once and copied for each test."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import msgspec

from unisono.lake.lake import Lake
from unisono.pipeline.maintain.embedded import open_maintainer
from unisono.pipeline.open_log import sqlite_uri
from unisono.store.port import Record


class Prepared(msgspec.Struct, frozen=True):
    """`data` and `lake` in a folder, and the records in them."""

    folder: Path
    records: list[Record]

    def copy(self, to: Path) -> tuple[Path, Lake]:
        """A data directory and a lake of the test's own; the log names the copy as its archive."""
        for name in ("data", "lake"):
            shutil.copytree(self.folder / name, to / name)
        with closing(open_maintainer(sqlite_uri(to / "data"))) as maintainer:
            maintainer.set_archive(str(to / "lake"))
        return to / "data", Lake.at(str(to / "lake"))
