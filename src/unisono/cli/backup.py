"""`unisono backup`: backups of an embedded log, taken beside its server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from unisono.cli.local_path import LocalPath
from unisono.cli.progress_bars import progress_bars
from unisono.cli.store_option import EXIT_UNUSABLE, error_exit
from unisono.display import megabytes
from unisono.store.port import StorageError
from unisono.store.sqlite.backup import back_up, verify_backups
from unisono.store.sqlite.backup_files import BackupDamaged, BackupDirectory

EXIT_DAMAGED: Final = 1

_LABELS: Final = {"copy": "copying", "check": "checking", "store": "storing", "verify": "verifying"}


@click.command()
@click.argument("target", type=LocalPath(file_okay=False))
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path("unisono-data"),
    show_default=True,
    help="The data directory, with or without a running server.",
)
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Remove all backups but the newest N.")
@click.option("--check", is_flag=True, help="Check every event of the copy, as `unisono check` does.")
@click.option("--list", "listing", is_flag=True, help="Only list the backups in TARGET.")
@click.option("--verify", is_flag=True, help="Only read all backups in TARGET, as a restore would.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def backup(
    target: Path, data: Path, keep: int | None, check: bool, listing: bool, verify: bool, quiet: bool
) -> None:
    """Back up an embedded log into the directory TARGET, beside its running server.

    A backup is the log at one moment. Only what changed since the one before is stored, and read back; each backup
    has a manifest and can be restored by itself. Put TARGET on another disk, and mirror it elsewhere: its files never
    change once they are there. What has left the log is in the lake, which is backed up apart.

    Exit codes: 0 done, 1 a backup or the log is damaged, 2 cannot be done.

    \b
      unisono backup /backups/unisono --data /var/lib/unisono --keep 30
      unisono backup /backups/unisono --list
      unisono restore --from /backups/unisono --data /var/lib/unisono-restored

    A log in PostgreSQL is backed up with the tools of PostgreSQL: see docs/operations-postgres.md.
    """
    if (listing or verify) and (keep or check or listing == verify):
        raise click.UsageError("--list and --verify go alone")
    if (listing or verify) and not BackupDirectory(target).names():
        click.echo(f"unisono: {target} has no backups", err=True)
        sys.exit(EXIT_UNUSABLE)
    with error_exit():
        if listing:
            _list(BackupDirectory(target))
        elif verify:
            _verify(target, quiet)
        else:
            _back_up(data, target, keep, check, quiet)


def _back_up(data: Path, target: Path, keep: int | None, check: bool, quiet: bool) -> None:
    try:
        with progress_bars(quiet, _LABELS) as progress:
            done = back_up(data, target, keep=keep, check=check, progress=progress)
    except BackupDamaged as error:
        click.echo(f"unisono: {error}", err=True)
        sys.exit(EXIT_DAMAGED)
    made = done.manifest
    click.echo(
        f"{done.name}: head {made.head}, {megabytes(made.bytes)}, {megabytes(made.pack_bytes)} of it new"
        + (f"; removed {done.removed} older" if done.removed else "")
    )
    if made.pruned_to:
        click.echo(
            f"events up to {made.pruned_to} are in the lake {made.archive}: back it up as well", err=True
        )


def _list(directory: BackupDirectory) -> None:
    for name in directory.names():
        try:
            made = directory.manifest(name)
        except StorageError as error:
            click.echo(f"{name}  {error}")
        else:
            click.echo(
                f"{name}  head {made.head}  {megabytes(made.bytes)}  {megabytes(made.pack_bytes)} of it new  "
                f"log_id {made.log_id}, log_epoch {made.log_epoch}"
            )
    click.echo(f"{megabytes(directory.total_bytes())} in all")


def _verify(target: Path, quiet: bool) -> None:
    with progress_bars(quiet, _LABELS) as progress:
        found = verify_backups(target, progress)
    for name, complaint in found.items():
        click.echo(f"{name}: {complaint or 'good'}")
    sys.exit(EXIT_DAMAGED if any(found.values()) else 0)
