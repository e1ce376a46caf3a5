"""`unisono db`, `copy` and `restore`: the shared log's schema, moving a log from one store to another, backups."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from unisono.cli.local_path import LocalPath
from unisono.cli.progress_bars import progress_bars
from unisono.cli.store_option import error_exit, needing_driver, store_option
from unisono.cli.suggestions import SuggestingGroup
from unisono.display import megabytes
from unisono.store.copy import CopyResult, copy_log
from unisono.store.sqlite.log import SqliteLog
from unisono.store.sqlite.restore import restore_log
from unisono.vocabulary import LogIdentity

EXIT_NOT_READY = 1

DOING = {"compare": "comparing", "copy": "copying", "snapshots": "snapshots", "verify": "verifying"}


def _schema() -> ModuleType:
    with needing_driver():
        from unisono.store.postgres import schema as postgres_schema
    return postgres_schema


def _role_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--runtime-role", metavar="ROLE", help="Grant this role what a node needs, and no more."
    )(command)


@click.group(cls=SuggestingGroup)
def db() -> None:
    """Make, migrate and look at the log in a PostgreSQL database.

    Run as the owner of the log; nodes run as a role that can add events and never change or remove one.
    """


@db.command()
@store_option(required=True)
@_role_option
def init(store: str, runtime_role: str | None) -> None:
    """Make an empty log in a database. Does nothing to one that is there.

    \b
      unisono db init --store postgresql://owner@db.example/unisono --runtime-role unisono_node
    """
    with error_exit():
        done = _schema().initialise(store, runtime_role=runtime_role)
    click.echo(f"made a log: {', '.join(done)}" if done else "there is a log already; nothing was done")


@db.command()
@store_option(required=True)
@_role_option
@click.option("--finish", is_flag=True, help="Also take away what only nodes of older versions needed.")
def migrate(store: str, runtime_role: str | None, finish: bool) -> None:
    """Bring the schema to the version of this program, while nodes run.

    First run it without --finish, which only adds: nodes of the version before go on. Upgrade the nodes one by
    one. Then run it with --finish; it refuses while a node that needs the old form gives signs of life.
    """
    with error_exit():
        done = _schema().migrate(store, finish=finish, runtime_role=runtime_role)
    click.echo(f"applied {', '.join(done)}" if done else "nothing to apply")


@db.command()
@store_option(required=True)
def status(store: str) -> None:
    """Tell how the log stands: its schema, its head, and the nodes.

    Exit code 0: ready; 1: migrations are pending; 2: no log, or no way to it.
    """
    with error_exit():
        found = _schema().status(store)
    click.echo(f"{found.database}, PostgreSQL {found.server_version}")
    click.echo(f"schema     {found.applied} migrations applied" + _pending(found.pending))
    pruned = f", pruned to {found.pruned_to}" if found.pruned_to else ""
    click.echo(f"log        head {found.head}{pruned}, last event {_when(found.status_updated_at)}")
    click.echo(f"           {megabytes(found.log_bytes)}, {found.snapshots} snapshots")
    click.echo(f"           {_named(LogIdentity(found.log_id, found.log_epoch))}")
    click.echo(f"model      {'none published' if found.model_version is None else found.model_version}")
    click.echo(
        f"standbys   {found.standbys or 'none confirms commits: a failover may lose the last of them'}"
    )
    click.echo(f"presence   {found.presence} clients")
    for node in found.nodes:
        click.echo(
            f"node       {node.name}  up {node.up_s:,.0f} s, last sign of life {node.silent_s:,.1f} s ago"
        )
    sys.exit(EXIT_NOT_READY if found.pending else 0)


@db.command("new-epoch")
@store_option(required=False)
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Or the data directory of an embedded log; no server may run on it.",
)
def new_epoch(store: str | None, data: Path | None) -> None:
    """Say that the past of a log may have changed: every client then starts over from 0.

    For restores that nobody else notices: a disk or a volume put back to an earlier moment, a copied data directory
    put in the place of a newer one. Run it before the nodes start.

    \b
      unisono db new-epoch --data /var/lib/unisono
      unisono db new-epoch --store postgresql://owner@db.example/unisono
    """
    if (store is None) == (data is None):
        raise click.UsageError("give --store or --data, one of them")
    with error_exit():
        if data is not None:
            with closing(SqliteLog.open(data)) as log:
                before, after = log.identity(), log.new_epoch()
        else:
            with needing_driver():
                from unisono.store.postgres import identity as postgres_identity
            before, after = postgres_identity.new_epoch(str(store))
    click.echo(f"{_named(after)}, before it was {before.log_epoch}: clients start over when they connect")


@click.command()
@click.option(
    "--from",
    "source",
    required=True,
    type=click.Path(path_type=Path, exists=True),
    help="The target of `unisono backup`, a directory with log.db in it, or that file. Only read.",
)
@click.option(
    "--at",
    metavar="NAME",
    help="Which backup of `unisono backup`; its --list has them. [default: the newest]",
)
@click.option("--data", required=True, type=LocalPath(), help="The new data directory; missing or empty.")
def restore(source: Path, at: str | None, data: Path) -> None:
    """Make a data directory from a backup of an embedded log, as a log of its own.

    Clients know the log by its log_id. The restored one has a new one, so that those who have seen more than the
    backup holds start over from 0 and keep their drafts, instead of going on in a past that is no longer there.

    \b
      unisono restore --from /backups/unisono --data /var/lib/unisono
    """
    with error_exit():
        done = restore_log(source, data, at)
    click.echo(f"restored {done.events} events up to {done.head} into {data}: {_named(done.identity)}")


@click.command()
@click.option(
    "--from", "source", required=True, metavar="STORE", help="sqlite:DIR or postgresql://…; only read."
)
@click.option(
    "--to", "target", required=True, metavar="STORE", help="sqlite:DIR or postgresql://…; made before."
)
@click.option(
    "--restore", "restoring", is_flag=True, help="The source is a backup: the copy gets a log_id of its own."
)
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def copy(source: str, target: str, restoring: bool, quiet: bool) -> None:
    """Copy a log to another store, ids kept, and verify it.

    The copy is the same log in another place, and clients go on with it. From a backup of a log that went on since,
    use --restore: clients then start over from 0.

    The target is empty or the beginning of the same log: broken off, the same command goes on. The source may be
    in use, but what it commits meanwhile is not copied: stop its server, run the command once more, and start the
    nodes on the target.

    \b
      unisono db init --store postgresql://owner@db.example/unisono
      unisono copy --from sqlite:/var/lib/unisono --to postgresql://owner@db.example/unisono
    """
    for place in (source, target):
        if not place.startswith(("sqlite:", "postgresql://", "postgres://")):
            raise click.UsageError(f"{place!r} is no store: give sqlite:DIR or postgresql://…")
        if place.startswith("postgres"):
            _schema()
    with error_exit(), progress_bars(quiet, DOING) as progress:
        done = copy_log(source, target, progress, restoring=restoring)
    click.echo(_outcome(done))


def _outcome(done: CopyResult) -> str:
    lines = [
        f"copied {done.events} events and {done.snapshots} snapshots"
        + (f" ({done.present} events were there)" if done.present else "")
        + f"; verified up to {done.head}",
        f"sha256 of the events: {done.digest}",
        _named(done.identity),
    ]
    if done.behind:
        lines.append(f"the source has {done.behind} more by now: stop its server and run this command again")
    return "\n".join(lines)


def _named(identity: LogIdentity) -> str:
    return f"log_id {identity.log_id}, log_epoch {identity.log_epoch}"


def _pending(names: tuple[str, ...]) -> str:
    return f", pending: {', '.join(names)} (unisono db migrate)" if names else ""


def _when(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(" ", "seconds") if time_ms else "never"
