"""`unisono lake erase`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unisono.cli.lake.command import EXIT_NOT_DONE, LakeTarget, at_place, sum_up
from unisono.cli.local_path import LocalPath

if TYPE_CHECKING:
    from unisono.lake.lake import Lake
    from unisono.pipeline.jobs.erase.job import EraseSummary
    from unisono.pipeline.jobs.erase.select import Selector


@click.command("erase")
@at_place
@click.option(
    "--client", "clients", multiple=True, metavar="C", help="All events of this client. May be repeated."
)
@click.option(
    "--user", "users", multiple=True, metavar="U", help="All events of this user_id. May be repeated."
)
@click.option("--id", "ids", multiple=True, metavar="ID", help="The event with this id. May be repeated.")
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    metavar="P",
    help="All events of this partition. May be repeated.",
)
@click.option(
    "--reason", metavar="TEXT", help="Kept with the record of the erasure, so say nothing private here."
)
@click.option(
    "--reports",
    type=click.Path(path_type=Path, file_okay=False),
    multiple=True,
    help="A report of `unisono lake report` to delete. May be repeated.",
)
@click.option(
    "--certificate",
    type=LocalPath(dir_okay=False),
    metavar="FILE",
    help="Write what was asked, erased, searched and found as JSON, also when content remains.",
)
@click.option("--signed-off-by", metavar="NAME", help="Who answers for the erasure, in the certificate.")
@click.option(
    "--signing-key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="PEM",
    help="Sign the certificate with this private key (Ed25519, RSA or P-256), into FILE.jws.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be erased; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def erase_(
    place: LakeTarget,
    clients: tuple[str, ...],
    users: tuple[str, ...],
    ids: tuple[str, ...],
    partitions: tuple[str, ...],
    reason: str | None,
    reports: tuple[Path, ...],
    certificate: Path | None,
    signed_off_by: str | None,
    signing_key: Path | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Erase what events said, for good: in the log, in the lake, in snapshots. What is left is a tombstone.

    Ids, order, partitions, clients, times and hashes stay. At the end all files are searched for erased content;
    exit code 1 if some is found. After an interruption, the same command completes it. Copies on clients and in
    backups are not erased.
    """
    from unisono.pipeline.jobs.erase.job import erase, plan
    from unisono.pipeline.jobs.erase.old_reports import remove_report, require_report
    from unisono.pipeline.maintain.embedded import open_maintainer
    from unisono.pipeline.service.lease import Lease
    from unisono.pipeline.spark.cluster import require_visible

    selector = _selector(clients, users, ids, partitions)
    if not (yes or dry_run or sys.stdin.isatty()):
        raise click.UsageError("this cannot be undone: say --yes, or --dry-run to see what would be erased")
    if certificate is not None and not certificate.absolute().parent.is_dir():
        raise click.UsageError(f"{certificate} cannot be written: its directory is missing")
    if signing_key is not None and certificate is None:
        raise click.UsageError("--signing-key signs the --certificate: name its file")
    key = None if signing_key is None else _private_key(signing_key)
    store, lake = place.store_uri, place.open_lake()
    open_maintainer(store).close()
    lake.view()
    if not dry_run:
        place.rewrite_foreign_files(lake)
    for directory in reports:
        require_report(directory)
    spark = place.session("unisono lake erase")
    require_visible(spark, store)
    planned = plan(spark, store, lake, selector)
    if dry_run:
        click.echo(planned.text())
        return
    place.say(planned.text())
    if not yes:
        click.confirm("erase them? This cannot be undone", abort=True)
    lease = Lease(lake.storage)
    lease.acquire()
    try:
        for directory in reports:
            remove_report(directory)
            place.say(f"removed the report in {directory}: `unisono lake report` makes it again")
        done = erase(spark, store, lake, planned, reason=reason, notify=place.say, also=reports)
        _keep(lake, done, certificate, signed_off_by, key)
    finally:
        lease.release()
    _report(place, done)


def _private_key(file: Path) -> Any:
    """Read before anything is erased: a wrong key must not end an erasure."""
    from unisono.pipeline.jobs.erase.check_certificate import load_key

    return load_key(file.read_bytes(), private=True)


def _keep(lake: Lake, done: EraseSummary, file: Path | None, signed_off_by: str | None, key: Any) -> None:
    """Keep the certificate in the lake, then in a file, with its signature beside it."""
    from unisono.lake.errors import LakeError
    from unisono.lake.run_tables import RunRecord, new_run_id, record_runs
    from unisono.pipeline.jobs.erase.check_certificate import sign

    document = done.certificate if signed_off_by is None else done.certificate.signed_off(signed_off_by)
    note = "nothing remains" if document.complete else "content remains"
    run = RunRecord(
        new_run_id(),
        "erase",
        document.began_at,
        round(done.seconds, 3),
        document.events,
        document.complete,
        note,
        "" if document.complete else done.proof.text(),
        document.json().decode(),
    )
    try:
        record_runs(lake.storage, [run])
    except LakeError as error:
        click.echo(f"unisono: the erasure is not in the table of runs: {error}", err=True)
    if file is None:
        return
    try:
        file.write_bytes(document.json())
        if key is not None:
            file.with_name(f"{file.name}.jws").write_bytes(sign(document, key))
    except OSError as error:
        click.echo(
            f"unisono: the certificate cannot be written to {file} ({error.strerror}): the lake keeps it, "
            "as the `document` of this run in its table _runs",
            err=True,
        )
        sys.exit(EXIT_NOT_DONE)


def _selector(
    clients: tuple[str, ...], users: tuple[str, ...], ids: tuple[str, ...], partitions: tuple[str, ...]
) -> Selector:
    from unisono.pipeline.jobs.erase.select import Selector
    from unisono.protocol.partitions import normalise

    if sum(map(bool, (clients, users, ids, partitions))) != 1:
        raise click.UsageError("say which events: --client, --user, --id or --partition, one of these")
    if clients:
        return Selector("client", tuple(dict.fromkeys(clients)))
    if users:
        return Selector("user", tuple(dict.fromkeys(users)))
    if ids:
        return Selector("id", tuple(dict.fromkeys(ids)))
    try:
        return Selector("partition", tuple(normalise(partitions)))
    except ValueError as error:
        raise click.UsageError(f"--partition is not a valid name: {error}") from error


def _report(place: LakeTarget, done: EraseSummary) -> None:
    place.say(done.proof.text())
    if not done.proof.holds:
        what = (
            "stop the server, so that the log can be rewritten,"
            if done.proof.in_log
            else "remove what is named above"
        )
        click.echo(
            f"unisono: erased content remains: {what} and run the same command again, "
            "which repeats the search",
            err=True,
        )
        sys.exit(EXIT_NOT_DONE)
    note = f"{done.proof.files} files searched, none holds erased content"
    if before := done.events - done.intact:
        note = f"{before} of them were erased before, {note}"
    sum_up("erased", done.events, done.seconds, note)
