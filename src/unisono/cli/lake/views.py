"""`unisono lake views`: the lake's tables in a catalog, in a DuckDB file, or as Delta tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from unisono.cli.lake.command import LakeTarget, at_place
from unisono.cli.local_path import LocalPath

if TYPE_CHECKING:
    from unisono.lake.lake import Lake


@click.command("views")
@at_place
@click.option(
    "--duckdb",
    type=LocalPath(dir_okay=False),
    metavar="FILE",
    help="Into this DuckDB file, of the lake as it is now. Needs no Spark.",
)
@click.option(
    "--delta",
    metavar="DIR|URL",
    help="States and items as Delta tables there, as they are now. Needs no Spark.",
)
@click.option(
    "--database",
    metavar="NAME",
    help="Of the Spark catalog; made if it is missing. [default: the current one]",
)
@click.option("--prefix", default="", metavar="TEXT", help="Before the names of all tables.")
def views_(
    place: LakeTarget, duckdb: Path | None, delta: str | None, database: str | None, prefix: str
) -> None:
    """Make events, partition_events, states, items, runs and audit known to SQL, by one command.

    Without --duckdb and --delta they become tables in the catalog of Spark, which show the lake as it is at each
    query. Run again, the command replaces what it made.

    \b
      unisono lake views --lake lake --duckdb lake.duckdb
      unisono lake views --lake s3://bucket/lake --master sc://spark:15002 --database history
    """
    if duckdb is not None and delta is not None:
        raise click.UsageError("give --duckdb or --delta, not both")
    if database is not None and (duckdb is not None or delta is not None):
        raise click.UsageError("--database is for the catalog of Spark")
    if duckdb is not None:
        from unisono.pipeline.duckdb_file import make_duckdb_file

        lake = place.open_lake()
        reach, version = _states_reach(lake)
        file = make_duckdb_file(lake, duckdb, prefix)
        click.echo(
            f"{file.path}: events up to {file.head}, {file.states} states and {file.items} items up to {reach} "
            f"by model version {version}"
        )
        return
    if delta is not None:
        from unisono.lake.storage import Storage
        from unisono.pipeline.delta_copies import write_delta_copies

        lake = place.open_lake()
        reach, version = _states_reach(lake)
        copies = write_delta_copies(lake, Storage.at(delta, place.storage_options), prefix)
        click.echo(
            f"{copies.location}: {copies.states} states and {copies.items} items, of events up to {reach} "
            f"by model version {version}"
        )
        return
    from unisono.pipeline.views import create_catalog_tables, require_lasting_catalog

    location = place.open_lake().storage.location
    spark = place.session("unisono lake views")
    require_lasting_catalog(spark)
    for name in create_catalog_tables(spark, location, place.storage_options, database, prefix):
        click.echo(name)


def _states_reach(lake: Lake) -> tuple[int, int]:
    """How far states and items go, and their model version; says so where the lake has later events."""
    from unisono.pipeline.lake_tables import states_reach

    (reach, version), head = states_reach(lake), lake.head()
    if reach < head:
        behind = f"states and items are of events up to {reach}, the lake has {head}"
        click.echo(f"{behind}: `unisono lake snapshot` folds the rest", err=True)
    return reach, version
