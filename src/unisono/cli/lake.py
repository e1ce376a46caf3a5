"""`unisono lake …`: the history in bulk, on Spark. PySpark is imported by a command when it runs, never before."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

if TYPE_CHECKING:
    from unisono.pipeline.lake import Lake

DATA: Final = Path("unisono-data")
EXIT_NOT_DONE: Final = 1
EXIT_CANNOT: Final = 2

Command = Callable[..., Any]

_RAISED: Final = re.compile(r"^[\w.]*?(\w*(?:Error|Exception): .+)$", re.MULTILINE)
_OWN_ERROR: Final = re.compile(r"unisono\.pipeline\.errors\.\w+: (.+)")


class Place(msgspec.Struct, frozen=True):
    """Where the log and the lake are, and where the work is done."""

    store: str | None
    lake: str
    storage_options: dict[str, str]
    master: str | None
    spark_conf: dict[str, str]
    quiet: bool

    def open_lake(self) -> Lake:
        from unisono.pipeline.lake import Lake

        return Lake.at(self.lake, self.storage_options)

    def say(self, text: str) -> None:
        if not self.quiet:
            click.echo(text, err=True)

    def context(self, app: str) -> Any:
        from unisono.pipeline.session import context

        return context(self.master, app, conf=self.spark_conf, progress=self._bars())

    def session(self, app: str) -> Any:
        from unisono.pipeline.session import session

        return session(self.master, app, conf=self.spark_conf, progress=self._bars(), quick=True)

    def _bars(self) -> bool:
        return not self.quiet and sys.stderr.isatty()


def _pairs(_: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for value in values:
        key, equals, rest = value.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{value!r} is not K=V", param=option)
        pairs[key] = rest
    return pairs


def _place(command: Command) -> Command:
    """The options that every command has, handed on as one `Place`."""

    def run(
        data: Path | None,
        store: str | None,
        lake: str,
        master: str | None,
        spark_conf: dict[str, str],
        storage_option: dict[str, str],
        quiet: bool,
        **rest: Any,
    ) -> None:
        if data is not None and store is not None:
            raise click.UsageError("give --data or --store, not both")
        named = store if data is None else f"sqlite:{data}"
        with _reporting():
            command(Place(named, lake, storage_option, master, spark_conf, quiet), **rest)

    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    # What the command itself asks for comes first in its help.
    run.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in (
        click.option("--quiet", is_flag=True, help="No progress on stderr."),
        click.option(
            "--storage-option",
            multiple=True,
            metavar="K=V",
            callback=_pairs,
            help="For an object store, as delta-rs takes them (aws_region=…). May be repeated.",
        ),
        click.option(
            "--spark-conf",
            multiple=True,
            metavar="K=V",
            callback=_pairs,
            help="A setting of Spark. May be repeated.",
        ),
        click.option(
            "--master",
            metavar="URL",
            help="Where Spark runs: local[*], local[4], spark://HOST:PORT. [default: local[*]]",
        ),
        click.option(
            "--lake", required=True, metavar="DIR|URL", help="The lake: a directory or an object store's URL."
        ),
        click.option("--store", metavar="URI", help="The log: sqlite:DIRECTORY or postgresql://…"),
        click.option(
            "--data", type=click.Path(path_type=Path), help="The log of the server with this data directory."
        ),
    ):
        run = option(run)
    return run


@click.group()
def lake() -> None:
    """Copy the log into a lake of Delta tables, and look after it.

    Needs the pipeline's packages (pip install 'unisono[pipeline]') and Java 17. Exit codes of all commands: 0 done,
    1 begun and not done, 2 cannot be done as asked.
    """


@lake.command("export")
@_place
@click.option("--to", type=click.IntRange(min=0), metavar="N", help="Up to this committed_id. [default: all]")
@click.option("--events-per-file", type=click.IntRange(min=1), metavar="N", help="At most. [default: 250000]")
@click.option("--buckets", type=click.IntRange(1, 1024), metavar="N", help="Of a new lake. [default: 16]")
@click.option(
    "--verify", is_flag=True, help="Compare with the log what was added; all of it when nothing was."
)
@click.option("--follow", is_flag=True, help="Go on with what the server commits, until SIGTERM or ctrl-c.")
@click.option(
    "--every", type=click.FloatRange(min=0.01), default=1.0, metavar="S", help="Look that often. [default: 1]"
)
@click.option(
    "--events-per-batch",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --follow, at most. [default: 100000]",
)
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    help="Where --follow keeps its place. [default: _follow in the lake's directory]",
)
def export_(
    place: Place,
    to: int | None,
    events_per_file: int | None,
    buckets: int | None,
    verify: bool,
    follow: bool,
    every: float,
    events_per_batch: int | None,
    checkpoint: Path | None,
) -> None:
    """Copy into the lake what it does not have yet of the log: every event exactly once, whatever is killed when."""
    from unisono.pipeline.stores import extent, normal_uri
    from unisono.pipeline.tables import BUCKETS

    store = normal_uri(place.store or f"sqlite:{DATA}")
    extent(store)
    target = place.open_lake()
    target.make(buckets or BUCKETS)
    if follow:
        _follow(place, store, target, every, events_per_batch, checkpoint)
    else:
        _export(place, store, target, to, events_per_file, verify)


def _export(
    place: Place, store: str, target: Lake, to: int | None, events_per_file: int | None, verify: bool
) -> None:
    from unisono.pipeline.cluster import require_visible
    from unisono.pipeline.export import EVENTS_PER_FILE, export, plan

    head = target.head()
    if not plan(store, target, to) and not (verify and head):
        click.echo(f"nothing to export: the lake has all events up to {head}")
        return
    spark = place.context("unisono lake export")
    require_visible(spark, store)
    done = export(
        spark,
        store,
        target,
        to=to,
        events_per_file=events_per_file or EVENTS_PER_FILE,
        progress=lambda events, of: place.say(f"exported {events} of {of} events"),
    )
    if verify:
        _verify(place, spark, store, target, done.since if done.events else 0)
    _sum_up("exported", done.events, done.seconds, f"the lake has all events up to {done.upto}")


def _follow(
    place: Place,
    store: str,
    target: Lake,
    every: float,
    events_per_batch: int | None,
    checkpoint: Path | None,
) -> None:
    from unisono.pipeline.cluster import require_visible
    from unisono.pipeline.export import Exported
    from unisono.pipeline.follow import Follower
    from unisono.pipeline.source import EVENTS_PER_BATCH

    if checkpoint is None:
        if not target.storage.is_local:
            raise click.UsageError("--follow to an object store needs --checkpoint, a directory")
        checkpoint = Path(target.storage.location) / "_follow"
    began, events = time.monotonic(), 0
    stop = threading.Event()

    def told(done: Exported) -> None:
        nonlocal events
        events += done.events
        place.say(f"exported {done.since + 1} to {done.upto} in {done.seconds:.1f} s")

    spark = place.session("unisono lake export --follow")
    for number in (signal.SIGTERM, signal.SIGINT):  # after Spark, which takes SIGINT for itself
        signal.signal(number, lambda *_: stop.set())
    require_visible(spark.sparkContext, store)
    follower = Follower(
        spark,
        store,
        target,
        checkpoint,
        every_s=every,
        events_per_batch=events_per_batch or EVENTS_PER_BATCH,
        told=told,
    )
    place.say(f"following {store.partition(':')[0]} from event {target.head()}")
    follower.run(stop)
    _sum_up("exported", events, time.monotonic() - began, f"stopped at event {target.head()}")


@lake.command("compact")
@_place
@click.option(
    "--rows-per-file", type=click.IntRange(min=1), metavar="N", help="Of a full file. [default: 1000000]"
)
@click.option(
    "--vacuum-hours",
    type=click.IntRange(min=0),
    metavar="H",
    help="Then remove files that no version of the last H hours names, and what killed jobs left.",
)
@click.option("--verify", is_flag=True, help="Compare the whole lake with the log afterwards.")
def compact_(place: Place, rows_per_file: int | None, vacuum_hours: int | None, verify: bool) -> None:
    """Join small files into large ones, in both tables; readers and exports go on meanwhile."""
    from unisono.pipeline.compact import ROWS_PER_FILE, compact, vacuum, work
    from unisono.pipeline.stores import normal_uri

    began, target = time.monotonic(), place.open_lake()
    rows = rows_per_file or ROWS_PER_FILE
    before = after = rewritten = 0
    if work(target, rows) or verify:
        spark = place.context("unisono lake compact")
        for table in compact(spark, target, rows):
            place.say(f"{table.table}: {table.files_before} files → {table.files_after}")
            before, after = before + table.files_before, after + table.files_after
            rewritten += table.rows_rewritten
        if verify:
            _verify(place, spark, normal_uri(place.store or f"sqlite:{DATA}"), target, 0)
    note = f"{before} files became {after}" if rewritten else "nothing to join"
    if vacuum_hours is not None:
        note += f", {vacuum(target, vacuum_hours)} old files removed"
    _sum_up("rewrote", rewritten, time.monotonic() - began, note, "rows")


@lake.command("info")
@_place
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def info_(place: Place, as_json: bool) -> None:
    """Tell what is in the lake, and how far it is behind the log when one is named."""
    from unisono.pipeline.report import info
    from unisono.pipeline.stores import normal_uri

    told = info(place.open_lake(), None if place.store is None else normal_uri(place.store))
    click.echo(msgspec.json.encode(told).decode() if as_json else told.text())


def _verify(place: Place, spark: Any, store: str, target: Lake, since: int) -> None:
    from unisono.pipeline.errors import Mismatch
    from unisono.pipeline.verify import verify

    checked = verify(spark, store, target, since)
    for part in checked:
        if not part.equal:
            raise Mismatch(
                f"the lake differs from the log within events {part.since + 1} to {part.upto}: {part}"
            )
    rows = sum(part.log.rows for part in checked)
    place.say(f"verified {rows} events: both tables hold what the log holds")


def _sum_up(verb: str, count: int, seconds: float, note: str, unit: str = "events") -> None:
    rate = count / seconds if seconds > 0 else 0.0
    click.echo(f"{verb} {count} {unit} in {seconds:.1f} s ({rate:,.0f} {unit}/s): {note}")


@contextmanager
def _reporting() -> Iterator[None]:
    """Errors as one line for a person, with an exit code; Java goes with this process."""
    try:
        from unisono.pipeline.errors import Mismatch, Overtaken, PipelineError
    except ImportError as error:
        _fail(f"the pipeline's packages are missing ({error}): pip install 'unisono[pipeline]'", EXIT_CANNOT)
    try:
        yield
    except (Mismatch, Overtaken) as error:
        _fail(str(error), EXIT_NOT_DONE)
    except PipelineError as error:
        _fail(str(error), EXIT_CANNOT)
    except ImportError as error:
        _fail(f"the pipeline's packages are missing ({error}): pip install 'unisono[pipeline]'", EXIT_CANNOT)
    except click.ClickException:
        raise
    except Exception as error:
        if os.environ.get("UNISONO_TRACEBACK"):
            raise
        _fail(brief(error), EXIT_NOT_DONE)


def brief(error: Exception) -> str:
    """What a failed job comes down to: of the traceback that Spark carries over, the error itself."""
    text = str(error)
    if own := _OWN_ERROR.findall(text):
        return str(own[-1])
    if raised := _RAISED.findall(text):
        return str(raised[-1])
    return text.strip().partition("\n")[0] or type(error).__name__


def _fail(text: str, code: int) -> None:
    click.echo(f"unisono: {text}", err=True)
    sys.exit(code)
