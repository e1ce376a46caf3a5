"""`unisono lake info`: what is in a lake. Needs no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from unisono.cli.lake.command import LakeTarget, at_place
from unisono.cli.lake.output import json_option
from unisono.display import megabytes

if TYPE_CHECKING:
    from unisono.lake.lake import Lake
    from unisono.lake.table import Table
    from unisono.lake.write import DataFile


class TableInfo(msgspec.Struct, frozen=True):
    """One table: its Delta version, the last event it has, its files."""

    name: str
    version: int
    head: int
    rows: int
    runs: int
    files: int
    fresh_files: int
    bytes: int


class SnapshotsInfo(msgspec.Struct, frozen=True):
    """The snapshots of one model version. Every event up to `folded` is in a snapshot of each of its partitions.

    `rearranged`: another program wrote them anew; nothing can check states, so they are not read any more.
    """

    model_version: int
    model_digest: str
    folded: int
    rows: int
    files: int
    bytes: int
    rearranged: bool = False


class LakeInfo(msgspec.Struct, frozen=True):
    """The lake, and the extent of the log where one is named."""

    location: str
    head: int
    buckets: int
    tables: list[TableInfo]
    store_head: int | None = None
    store_pruned_to: int | None = None
    snapshots: list[SnapshotsInfo] = []

    def text(self) -> str:
        lines = [f"{self.location}: events 1 to {self.head}" if self.head else f"{self.location}: empty"]
        lines[0] += f", {self.buckets} buckets"
        if self.store_head is not None:
            left = self.store_head - self.head
            lines[0] += f"; the log ends at {self.store_head}"
            lines[0] += f", {left} to export" if left >= 0 else ": it is another log, or has lost events"
        for table in self.tables:
            fresh = f" ({table.fresh_files} fresh)" if table.fresh_files else ""
            lines.append(
                f"  {table.name:<13} version {table.version:>5}  head {table.head:>10}  {table.rows:>11} rows  "
                f"{table.runs:>5} runs  {table.files:>6} files{fresh}  {megabytes(table.bytes):>12}"
            )
        for part in self.snapshots:
            unread = "  rearranged, `unisono lake snapshot` folds them again" if part.rearranged else ""
            lines.append(
                f"  {'snapshots':<13} model {part.model_version:>7}  head {part.folded:>10}  {part.rows:>11} rows  "
                f"           {part.files:>6} files  {megabytes(part.bytes):>12}{unread}"
            )
        return "\n".join(lines)


@click.command("info")
@at_place
@json_option("As one JSON object.")
def info_(place: LakeTarget, as_json: bool) -> None:
    """Show what is in the lake, and how far it is behind the log when one is named."""
    from unisono.pipeline.open_log import normal_uri

    found = lake_info(place.open_lake(), None if place.store is None else normal_uri(place.store))
    click.echo(msgspec.json.encode(found).decode() if as_json else found.text())


def lake_info(lake: Lake, store: str | None = None) -> LakeInfo:
    """Read the tables of a lake, without Spark."""
    from unisono.pipeline.open_log import extent

    view = lake.view()
    log = None if store is None else extent(store)
    return LakeInfo(
        lake.storage.location,
        view.head,
        view.buckets,
        [_table(view.log, view.log_files), _table(view.by_partition, view.all_partition_files)],
        log.head if log else None,
        log.pruned_to if log else None,
        _snapshots(lake),
    )


def _snapshots(lake: Lake) -> list[SnapshotsInfo]:
    from unisono.lake.errors import ForeignFiles
    from unisono.lake.snapshots import files_of
    from unisono.lake.storage import SNAPSHOTS

    table = lake.find(SNAPSHOTS)
    if table is None:
        return []
    try:
        files, rearranged = table.readable_files(), False
    except ForeignFiles:
        files, rearranged = table.listed_files(), True
    return [
        SnapshotsInfo(
            version,
            own[0].model_digest or "",
            table.folded_upto(version),
            sum(file.rows for file in own),
            len(own),
            sum(file.bytes for file in own),
            rearranged,
        )
        for version in sorted({file.model_version or 0 for file in files})
        if (own := files_of(files, version))
    ]


def _table(table: Table, files: Sequence[DataFile]) -> TableInfo:
    from unisono.lake.scan import runs_of
    from unisono.lake.write import UNBUCKETED

    return TableInfo(
        table.name,
        table.version,
        table.head,
        sum(file.rows for file in files),
        sum(1 for _ in runs_of(files)),
        len(files),
        sum(file.bucket == UNBUCKETED for file in files),
        sum(file.bytes for file in files),
    )
