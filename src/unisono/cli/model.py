"""`unisono model …` and `unisono snapshot`: inspect a model, and send admin commands to a running server."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import click

from unisono.cli.model_export import export
from unisono.cli.model_new import new
from unisono.cli.model_trial_process import LogRequest
from unisono.cli.model_trials import TrialFailed, Trials
from unisono.cli.store_option import error_exit, needing_driver
from unisono.cli.suggestions import SuggestingGroup
from unisono.config import Settings
from unisono.ipc.files import ADMIN_FILE, COMMAND_TIMEOUT_S, read_admin_file
from unisono.model.pack import pack
from unisono.node.model_review import ReviewProgress
from unisono.node.open_log import open_reader

ANSWER_LINE_BYTES_MAX: Final = 16 << 20
"""One line of an answer: the history of a log with many kinds of events."""

_DATA = click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path("unisono-data"),
    show_default=True,
    help="The running server's data directory.",
)


@click.group(cls=SuggestingGroup)
def model() -> None:
    """Begin or check a model, hand a new one to a running server, or export it for clients."""


model.add_command(new)
model.add_command(export)


@model.command("check")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--events",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    multiple=True,
    help="Try the model on these events, one JSON object per line, instead of its examples/*.jsonl.",
)
@click.option(
    "--data", type=click.Path(file_okay=False, path_type=Path), help="Try it on the log in this directory."
)
@click.option("--store", metavar="DSN", help="Try it on the log in this database, postgresql://…")
@click.option(
    "--archive", help="Lake that has the events which left that log; default: the one the log names."
)
@click.option(
    "--show-state",
    is_flag=False,
    flag_value="",
    metavar="[PARTITION]",
    help="Print the state the events lead to, of one partition or of all.",
)
@click.option(
    "--rule-timeout-s",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="A rule that takes longer on one event is taken for one that never returns.",
)
@click.option(
    "--js",
    "javascript",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Compare with reducers in JavaScript: a module whose default export has a function for each schema.",
)
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def check(
    directory: Path,
    events: tuple[Path, ...],
    data: Path | None,
    store: str | None,
    archive: str | None,
    show_state: str | None,
    rule_timeout_s: float,
    javascript: Path | None,
    quiet: bool,
) -> None:
    """Lint the model in DIRECTORY and say what it would do.

    Events are tried in processes of their own, several times, with other seeds for hashes and at another time: a
    model whose results differ is reported with the first event where they do. Exit code 1 when the
    model cannot be used, when it refuses one of the events, or when it is not deterministic.

    Lines of events are bare events, or {"partitions": [...], "event": {...}} as in the log. Each file starts from
    empty states.

    With --data or --store the whole log is read instead, and nothing in it changes. The report says how many of its
    events no longer apply, as `unisono model reload` does. A server may run on it.

    With --js the events also go through reducers in JavaScript (needs Node 20): exit code 1 when their states differ
    from those of the model, with the first event after which they do.
    """
    if sum((bool(events), data is not None, store is not None)) > 1:
        raise click.UsageError("give one of --events, --data and --store")
    try:
        if data is None and store is None:
            if archive is not None:
                raise click.UsageError("--archive belongs to a log: --data or --store")
            ok = _check_stories(directory, events, show_state, rule_timeout_s, javascript)
        else:
            with error_exit(), needing_driver():
                settings = Settings(data=str(data or "unisono-data"), store=store, archive=archive)
                ok = _check_log(directory, settings, show_state, rule_timeout_s, quiet, javascript)
    except TrialFailed as error:
        raise click.ClickException(str(error)) from None
    sys.exit(0 if ok else 1)


def _check_stories(
    directory: Path,
    events: tuple[Path, ...],
    show: str | None,
    timeout_s: float,
    javascript: Path | None,
) -> bool:
    with ExitStack() as stack:
        files = [(str(path), path) for path in events]
        if not events:
            files = [
                (f"examples/{path.name}", path) for path in sorted((directory / "examples").glob("*.jsonl"))
            ]
        elif Path("-") in events:
            whole = stack.enter_context(tempfile.NamedTemporaryFile())
            shutil.copyfileobj(sys.stdin.buffer, whole)
            whole.flush()
            files = [
                ("stdin", Path(whole.name)) if path == Path("-") else (name, path) for name, path in files
            ]
        for name, path in files:
            if not path.is_file():
                raise click.ClickException(f"{name} is no file of events")
        trials = Trials(directory, timeout_s)
        report = asyncio.run(trials.stories(files))
        if javascript is not None and not report.problems:
            asyncio.run(trials.javascript(javascript, files, None, report))
    click.echo(report.text(), nl=False)
    if show is not None and not report.problems:
        if not files:
            raise click.ClickException(
                "there are no events: give --events, or put some into examples/*.jsonl"
            )
        for story in report.stories:
            for partition, state in story.states.items():
                if show in ("", partition):
                    _show(f"{story.name}: {partition}", state)
    return report.ok


def _check_log(
    directory: Path,
    settings: Settings,
    show: str | None,
    timeout_s: float,
    quiet: bool,
    javascript: Path | None,
) -> bool:
    if show == "":
        raise click.UsageError("a log may have many partitions: --show-state PARTITION names one")
    reader = open_reader(settings)
    upto = reader.head()
    reader.close()
    report = asyncio.run(Trials(directory, timeout_s).stories([]))
    if report.ok:
        with click.progressbar(length=100, label="reading the log", file=sys.stderr, hidden=quiet) as bar:
            trials = Trials(directory, timeout_s, _ReloadProgress(bar).reached)
            review, problems = asyncio.run(trials.log(settings, upto))
        report.problems += problems
        report.sections.append(review.lines())
        if javascript is not None and not problems:
            log = LogRequest(settings, upto)
            asyncio.run(Trials(directory, timeout_s).javascript(javascript, [], log, report))
    click.echo(report.text(), nl=False)
    if show is not None and report.ok:
        state = asyncio.run(Trials(directory, timeout_s).state(settings, upto, show))
        if state is None:
            raise click.ClickException(f"the log has no event in {show!r}")
        _show(show, state)
    return report.ok


def _show(title: str, state: dict[str, Any]) -> None:
    halves = {half: value for half, value in state.items() if value}
    try:
        text = json.dumps(halves, indent=2, ensure_ascii=False)
    except RecursionError:
        text = pack(halves).decode()
    click.echo(f"\n{title}\n{text}")


@model.command("reload")
@_DATA
@click.option(
    "--model", "directory", default="", help="Another model directory; default: the server's own, read again."
)
@click.option(
    "--dry-run", is_flag=True, help="Check the model and read the log through it, and switch nothing."
)
@click.option("--strict", is_flag=True, help="Switch nothing when committed events no longer apply.")
@click.option("--skip-history", is_flag=True, help="Switch without reading the log first.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def reload(data: Path, directory: str, dry_run: bool, strict: bool, skip_history: bool, quiet: bool) -> None:
    """Put a newer model version into force without a restart.

    The new model is checked completely first; a broken one, or one whose model_version is not higher, changes
    nothing. Then the whole log is read through it, while the server works, and before anything switches the command
    prints how many committed events no longer apply. Clients of the canonical profile receive version_changed.

    Exit code 1: nothing was switched. For a very long log, `unisono lake revalidate` answers the same and more with
    Spark; then --skip-history.
    """
    if skip_history and strict:
        raise click.UsageError("--strict needs the history that --skip-history leaves out")
    wish = {"dry_run": dry_run, "strict": strict, "skip_history": skip_history}
    arguments = {name: "1" for name, given in wish.items() if given}
    arguments["model"] = str(Path(directory).resolve()) if directory else ""
    with click.progressbar(
        length=100, label="reading the log", file=sys.stderr, hidden=quiet or skip_history
    ) as bar:
        reloaded = _admin_command(data, "reload", arguments, _ReloadProgress(bar))
    switched = "would be" if dry_run else "→"
    click.echo(f"model_version {reloaded['old_model_version']} {switched} {reloaded['new_model_version']}")
    for key, change in reloaded["changes"].items():
        click.echo(f"  {key}: {json.dumps(change['before'])} → {json.dumps(change['after'])}")


class _ReloadProgress:
    """Shows the progress of a reload, and its findings before it switches."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def __call__(self, line: dict[str, Any]) -> None:
        if "history" not in line:
            self.reached(ReviewProgress(line["events"], line["of"]))
            return
        self._bar.update(100 - self._bar.pos)
        self._bar.render_finish()
        click.echo("\n".join(line["history"]["lines"]))

    def reached(self, progress: ReviewProgress) -> None:
        self._bar.update(max(0, int(progress.events * 100 / max(1, progress.of)) - self._bar.pos))


@click.command()
@_DATA
@click.option("--partition", "partitions", multiple=True, required=True, help="May be repeated.")
def snapshot(data: Path, partitions: tuple[str, ...]) -> None:
    """Have a running server write snapshots of partitions, so that their states load fast."""
    for partition in partitions:
        written = _admin_command(data, "snapshot", {"partition": partition}, None)
        click.echo(f"{partition}: state at {written['committed_id']}, {written['bytes']} bytes")


def _admin_command(
    data: Path, command: str, arguments: dict[str, str], follow: Callable[[dict[str, Any]], None] | None
) -> dict[str, Any]:
    import aiohttp  # takes as long as the rest of a command that needs no server

    try:
        admin = read_admin_file(data)
    except FileNotFoundError:
        raise click.ClickException(f"no server runs on {data} (there is no {ADMIN_FILE} in it)") from None
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{data / ADMIN_FILE} cannot be read: {error}") from None
    try:
        return asyncio.run(_post(admin.url, admin.token, command, arguments, follow))
    except (aiohttp.ClientError, TimeoutError) as error:
        raise click.ClickException(f"the server's admin port does not answer: {error}") from None


async def _post(
    url: str,
    token: str,
    command: str,
    arguments: dict[str, str],
    follow: Callable[[dict[str, Any]], None] | None,
) -> dict[str, Any]:
    """Send an admin command; with `follow` the answer comes in lines, and only the time between them is limited."""
    import aiohttp

    headers = {"Authorization": f"Bearer {token}"}
    limit_s = COMMAND_TIMEOUT_S + 10
    timeout = aiohttp.ClientTimeout(total=limit_s if follow is None else None, sock_read=limit_s)
    parameters = arguments if follow is None else {**arguments, "progress": "1"}
    async with (
        aiohttp.ClientSession(timeout=timeout, read_bufsize=ANSWER_LINE_BYTES_MAX) as session,
        session.post(f"{url}/orders/{command}", params=parameters, headers=headers) as response,
    ):
        status, answer = response.status, None
        if follow is None or status != 200:
            answer = await response.json()
        else:
            async for line in response.content:
                answer = json.loads(line)
                if "status" in answer:
                    status, answer = answer["status"], answer["answer"]
                    break
                follow(answer)
        if not isinstance(answer, dict) or (status == 200 and "events" in answer):
            raise click.ClickException("the server ended before it answered; its log says why")
        if status != 200:
            raise click.ClickException(str(answer.get("error", answer)))
        return answer
