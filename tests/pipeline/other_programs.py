"""What other programs do to a lake: lose lines, rearrange rows, drop statistics."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from deltalake import DeltaTable

from tests.pipeline.equality import by_partition
from unisono.lake.lake import Lake
from unisono.lake.storage import BY_PARTITION, LOG, SNAPSHOTS
from unisono.pipeline.job_model import ShippedModel
from unisono.store.port import Record
from unisono.store.sqlite.log import SqliteReader

EVENTS = 1_000

OPEN = ShippedModel.open()


class Place:
    """A log of 1,000 events, of which 100 have left it, and its lake, that another program may change."""

    def __init__(self, folder: Path, records: list[Record]) -> None:
        self.data = folder / "data"
        self.lake = Lake.at(str(folder / "lake"))
        self.records = records
        self.options = ["--data", str(self.data), "--lake", self.lake.storage.location, "--quiet"]

    def delta(self, table: str) -> DeltaTable:
        return DeltaTable(self.lake.storage.table(table))

    def commits(self, table: str) -> list[Path]:
        return sorted(Path(self.lake.storage.table(table), "_delta_log").glob("0*.json"))

    def kept(self) -> tuple[object, ...]:
        """What a wrong lake must not change: the log's extent, and the snapshots in it."""
        with closing(SqliteReader.open(self.data)) as reader:
            states = {
                name: None if (row := reader.snapshot(name, 0)) is None else (row.committed_id, row.state)
                for name in by_partition(self.records)
            }
            return reader.extent(), states


def lose_a_line(place: Place, table: str, number: int = -1) -> None:
    """The last commit that adds a file loses the line that does."""
    adding = [path for path in place.commits(table) if '"add"' in path.read_text()]
    lines = adding[number].read_text().splitlines()
    adding[number].write_text("\n".join(line for line in lines if '"add"' not in line) + "\n")


def restore(place: Place, table: str) -> None:
    delta = place.delta(table)
    delta.restore(delta.version() - 1)


def optimize(place: Place, table: str) -> None:
    place.delta(table).optimize.compact()


def z_order(place: Place, table: str) -> None:
    place.delta(table).optimize.z_order(["client_id" if table != SNAPSHOTS else "state"])


def drop_statistics(place: Place, table: str) -> None:
    path = place.commits(table)[-1]
    path.write_text(path.read_text().replace("numRecords", "numRecordz"))


DAMAGE: dict[str, tuple[Callable[[Place, str], None], str]] = {
    "optimize by_partition": (optimize, BY_PARTITION),
    "z-order by_partition": (z_order, BY_PARTITION),
    "optimize log": (optimize, LOG),
    "z-order log": (z_order, LOG),
    "statistics of by_partition": (drop_statistics, BY_PARTITION),
    "line of by_partition": (lose_a_line, BY_PARTITION),
    "line of log": (lose_a_line, LOG),
    "by_partition restored": (restore, BY_PARTITION),
    "log restored": (restore, LOG),
}
