"""Common to all `unisono lake` commands: options for log and lake, errors as one line, the summary line."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from unisono.extras import install_command

if TYPE_CHECKING:
    from unisono.lake.lake import Lake

DATA: Final = Path("unisono-data")
EXIT_NOT_DONE: Final = 1
EXIT_CANNOT: Final = 2

JAVA_END_TIMEOUT_S: Final = 10.0
"""Java is killed after this time: it has only temporary files to remove."""

_MASTER: Final = re.compile(
    r"local(\[(\*|[1-9]\d*)(\s*,\s*[1-9]\d*)?\])?"  # threads, and failures of a task that end a job
    r"|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    r"|spark://\S+:\d+"
    r"|yarn"
    r"|(k8s|sc)://\S+"
)
"""The masters of Spark, by their shape; whether there is one is found out when a session is made."""

Command = Callable[..., Any]


class LakeTarget(msgspec.Struct, frozen=True):
    """Where the log and the lake are, and where the work is done."""

    store: str | None
    lake: str
    storage_options: dict[str, str]
    master: str | None
    spark_conf: dict[str, str]
    quiet: bool

    @property
    def store_uri(self) -> str:
        """The named log, or the default data directory of a server."""
        from unisono.pipeline.open_log import normal_uri

        return normal_uri(self.store or f"sqlite:{DATA}")

    def open_lake(self) -> Lake:
        from unisono.lake.lake import Lake

        return Lake.at(self.lake, self.storage_options)

    def say(self, text: str) -> None:
        if not self.quiet:
            click.echo(text, err=True)

    def session(self, app: str, *, few_rows: bool = True) -> Any:
        from unisono.pipeline.spark.session import session

        with _own_interrupts():
            return session(
                self.master, app, conf=self.spark_conf, progress=self._bars(), quick=True, few_rows=few_rows
            )

    @property
    def chooses_spark(self) -> bool:
        """Whether somebody said where Spark is to run, or how."""
        given = ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE")
        return self.master is not None or bool(self.spark_conf) or any(name in os.environ for name in given)

    def rewrite_foreign_files(self, lake: Lake) -> None:
        """Put files that another program wrote into the lake's order, before a command that changes the lake."""
        from unisono.pipeline.jobs.compact.foreign_files import has_work, rewrite_foreign_files

        if has_work(lake):
            rewrite_foreign_files(self.session("unisono lake"), lake, self.say)

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


def _master(_: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Refuse what Spark cannot take, also where a command turns out to need no Spark."""
    if value is not None and _MASTER.fullmatch(value) is None:
        shapes = "local, local[N], local[*], spark://HOST:PORT, sc://HOST:PORT, yarn or k8s://HOST:PORT"
        raise click.BadParameter(f"{value!r} is no master of Spark: write {shapes}", param=option)
    return value


def master_option(command: Command) -> Command:
    return click.option(
        "--master",
        metavar="URL",
        callback=_master,
        help="Where Spark runs: local[*], local[4], spark://HOST:PORT, sc://HOST:PORT. [default: local[*]]",
    )(command)


class _LogName(click.ParamType[str]):
    """An empty name, as of a variable that is not set, must not mean the default, or this directory."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value == "":
            self.fail("it is empty: name a log, or leave the option out", param, ctx)
        return str(value)


def store_option(help: str) -> Callable[[Command], Command]:
    return click.option("--store", metavar="URI", type=_LogName(), help=help)


def data_option(help: str) -> Callable[[Command], Command]:
    return click.option("--data", metavar="DIR", type=_LogName(), help=help)


def named_store(data: str | None, store: str | None) -> str | None:
    """The log that --data or --store names; None for neither."""
    if data is None:
        return store
    if store is not None:
        raise click.UsageError("give --data or --store, not both")
    from unisono.pipeline.open_log import sqlite_uri

    return sqlite_uri(Path(data))


def at_place(command: Command) -> Command:
    """Adds the options that every command has; the command gets them as one `LakeTarget`."""

    def run(
        data: str | None,
        store: str | None,
        lake: str,
        master: str | None,
        spark_conf: dict[str, str],
        storage_option: dict[str, str],
        quiet: bool,
        explain: bool,
        **rest: Any,
    ) -> None:
        with reporting(), explaining(explain):
            named = named_store(data, store)
            command(LakeTarget(named, lake, storage_option, master, spark_conf, quiet), **rest)

    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    # The command's own options come first in its help.
    run.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in (
        explain_option,
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
        master_option,
        click.option(
            "--lake", required=True, metavar="DIR|URL", help="The lake: a directory or an object store's URL."
        ),
        store_option("The log: sqlite:DIRECTORY or postgresql://…"),
        data_option("The log of the server with this data directory."),
    ):
        run = option(run)
    return run


def explain_option(command: Command) -> Command:
    return click.option(
        "--explain", is_flag=True, help="Print the plan of each DataFrame that Spark runs, on stderr."
    )(command)


@contextmanager
def explaining(wanted: bool) -> Iterator[None]:
    """Print plans if wanted; without PySpark there are none."""
    if not wanted:
        yield
        return
    from unisono.pipeline.spark.plans import plans_shown

    with plans_shown(lambda text: click.echo(text, err=True)):
        yield


def sum_up(verb: str, count: int, seconds: float, note: str, unit: str = "events") -> None:
    rate = count / seconds if seconds > 0 else 0.0
    click.echo(f"{verb} {count} {unit} in {seconds:.1f} s ({rate:,.0f} {unit}/s): {note}")


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep our handler of ctrl-c: Spark's own calls Java, possibly within another call. Java ends with us."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@contextmanager
def reporting() -> Iterator[None]:
    """Print errors as one line and exit with a code; Java ends with this process."""
    with _quiet(), _as_one_line():
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the logs of libraries: their errors are raised as well."""
    handler, level = logging.NullHandler(), os.environ.get("RUST_LOG")
    logging.getLogger().addHandler(handler)  # otherwise PySpark logs to stderr
    os.environ.setdefault("RUST_LOG", "error")  # delta-rs warns of each location without credentials
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        if level is None:
            del os.environ["RUST_LOG"]


@contextmanager
def _as_one_line() -> Iterator[None]:
    try:
        from unisono.lake.errors import CommitConflict, LakeError
        from unisono.pipeline.errors import Mismatch, PipelineError, brief
    except ImportError as error:
        _fail(_missing(error), EXIT_CANNOT)
    try:
        yield
    except (click.ClickException, click.Abort):
        raise
    except (KeyboardInterrupt, Exception) as error:
        if _was_interrupted(error):
            _end_spark()
            _fail(
                "interrupted; completed work is kept, and the same command continues from there",
                EXIT_NOT_DONE,
            )
        if isinstance(error, ImportError):
            _fail(_missing(error), EXIT_CANNOT)
        expected = isinstance(error, PipelineError | LakeError)
        if not expected and os.environ.get("UNISONO_TRACEBACK"):
            raise
        cannot = expected and not isinstance(error, Mismatch | CommitConflict)
        _fail(brief(error), EXIT_CANNOT if cannot else EXIT_NOT_DONE)


def _missing(error: ImportError) -> str:
    return f"the pipeline's packages are missing ({error}): {install_command('pipeline')}"


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is the cause: Spark cleans up after it, cannot reach Java, and raises that error instead."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def _end_spark() -> None:
    """End Java before our last line: it logs every task that it leaves unfinished."""
    from unisono.pipeline.spark.private import be_silent, is_connect, java_process, running_session

    running = running_session()
    if running is None:
        return
    if is_connect(running):
        with suppress(Exception):
            running.interruptAll()
        return
    java = java_process(running)
    if java is None:  # spark-submit's
        return
    be_silent(running)
    with suppress(OSError):
        java.stdin.close()  # Java ends by itself then, and removes its temporary files
    try:
        java.wait(JAVA_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()


def _fail(text: str, code: int) -> None:
    click.echo(f"unisono: {text}", err=True)
    sys.exit(code)
