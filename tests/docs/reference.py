"""The pages under docs/reference/, made from the code that they describe."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import click
from msgspec import Meta

from unisono.cli.main import main
from unisono.cli.setting_fields import FIELDS, section_and_help
from unisono.cli.settings import OLD_NAMES
from unisono.client.options import Options
from unisono.config import Settings
from unisono.ipc.stats import SECONDS_BUCKETS, SIZE_BUCKETS
from unisono.node import pipeline_metrics
from unisono.node.metrics import COUNTERS, GAUGES, HISTOGRAMS
from unisono.node.supervisor import STATS_TIMEOUT_S

WIDTH: Final = 100
MADE: Final = "<!-- Made by `python -m tests.docs.generate`; change the code it describes, not this page. -->"


def settings_page() -> str:
    """Every setting with its default, what it may be, and what it does."""
    sections: dict[str, list[str]] = {}
    for name in FIELDS:
        section, text = section_and_help(name)
        row = f"| `{name}` | {_default(name)} | {_allowed(name)} | {_cell(text)} |"
        sections.setdefault(section, []).append(row)
    lines = [
        MADE,
        "",
        "# Settings",
        "",
        "A setting can be given in three places. The command line wins over the environment, and that over the file.",
        "",
        "| place | how it is written there | example |",
        "| --- | --- | --- |",
        "| option of `unisono serve` | dashes for underscores | `--heartbeat-timeout-s 20` |",
        "| environment | `UNISONO_` and the name in capitals | `UNISONO_HEARTBEAT_TIMEOUT_S=20` |",
        "| TOML file, named by `--config` or `UNISONO_CONFIG` | the name as below | `heartbeat_timeout_s = 20` |",
        "",
        "A setting that is on or off is an option pair, as in `--accept-init` and `--no-accept-init`; elsewhere it",
        "is `true` or `false`. A list is an array in the file and a text with commas elsewhere. A name that does not",
        "exist, or a value out of bounds, is an error at the start that names it, and the server does not run.",
        "",
        "What happens when a bound is reached is in [operations](../operations.md#bounds).",
    ]
    for section, rows in sections.items():
        lines += [
            "",
            f"## {section}",
            "",
            "| setting | default | allowed | meaning |",
            "| --- | --- | --- | --- |",
            *rows,
        ]
    lines += [
        "",
        "## Old names",
        "",
        "A setting given by its old name is an error that names the new one, at any of the three places.",
        "",
        "| old name | setting |",
        "| --- | --- |",
        *(f"| `{old}` | `{new}` |" for old, new in OLD_NAMES.items()),
    ]
    return "\n".join(lines) + "\n"


def cli_page() -> str:
    """The help of every command, from a process of its own: click lets a command keep its first caller's settings."""
    made = subprocess.run([sys.executable, "-m", "tests.docs.reference"], capture_output=True, check=True)
    return made.stdout.decode()


def _cli_page() -> str:
    lines = [MADE, "", "# Command line", "", "One command, `unisono`, with these parts:"]
    for path, text in _helps(main, None, "unisono"):
        lines += ["", f"## {path}", "", "```text", text, "```"]
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    """Every metric of the admin port."""
    lines = [
        MADE,
        "",
        "# Metrics",
        "",
        "`GET /metrics` on the admin port answers in the text format of Prometheus. Every metric has the label",
        "`process`: `authority`, `reader`, or `front 0`, `front 1` and so on. A process that does not answer within",
        f"{STATS_TIMEOUT_S:g} s is left out of that scrape. Counters start from 0 with the process, and one that",
        "has counted nothing yet may be missing.",
        "",
        "## Counters",
        "",
        "| metric | further label | counts |",
        "| --- | --- | --- |",
    ]
    lines += [
        f"| `unisono_{name}_total` | {f'`{label}`' if label else ''} | {_cell(text)} |"
        for name, (text, label) in COUNTERS.items()
    ]
    lines += ["", "## Gauges", "", "| metric | tells |", "| --- | --- |"]
    lines += [f"| `unisono_{name}` | {_cell(text)} |" for name, text in GAUGES.items()]
    lines += ["", "## Histograms", "", "| metric | observes |", "| --- | --- |"]
    lines += [f"| `unisono_{name}` | {_cell(text)} |" for name, text in HISTOGRAMS.items()]
    lines += [
        "",
        "A histogram `x` is `x_bucket`, `x_count` and `x_sum`. Upper bounds of the buckets, beside `+Inf`:",
        "",
        f"- of seconds: {', '.join(f'{bound:g}' for bound in SECONDS_BUCKETS)}",
        f"- of sizes: {', '.join(f'{bound:g}' for bound in SIZE_BUCKETS)}",
        "",
        "## The pipeline beside the server",
        "",
        "While `unisono lake run` keeps its status in the server's data directory, `GET /pipeline` shows it whole,",
        "and `/metrics` has these. They have no label `process`; those of a stage have the label `stage`.",
        "",
        "| metric | tells |",
        "| --- | --- |",
    ]
    lines += [
        f"| `unisono_pipeline_{name}` | {_cell(text)} |" for name, text in pipeline_metrics.GAUGES.items()
    ]
    lines += [
        f"| `unisono_pipeline_stage_{name}_total` | {_cell(text)} |"
        for name, text in pipeline_metrics.STAGE_COUNTERS.items()
    ]
    lines += [
        f"| `unisono_pipeline_stage_{name}` | {_cell(text)} |"
        for name, text in pipeline_metrics.STAGE_GAUGES.items()
    ]
    return "\n".join(lines) + "\n"


def client_options_page() -> str:
    """Every field of the client's `Options` with its default and its reason, which stands below it in the source."""
    tree = ast.parse(inspect.getsource(Options))
    assert isinstance(tree.body[0], ast.ClassDef)
    rows: list[str] = []
    names: list[str] = []
    for part in tree.body[0].body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            names.append(part.target.id)
        elif names and isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant):
            rows += [
                f"| `{name}` | {getattr(Options(), name)} | {_cell(str(part.value.value))} |"
                for name in names
            ]
            names = []
    assert not names, "an option without a reason"
    lines = [
        MADE,
        "",
        "# Options of the Python client",
        "",
        "Fields of `unisono.client.Options`, given as `options=Options(…)` to `connect` and `SyncClient`. Names that",
        "end in `_s` are seconds.",
        "",
        "| option | unless given | what it does, and why this number |",
        "| --- | --- | --- |",
        *rows,
    ]
    return "\n".join(lines) + "\n"


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "docs/reference/settings.md": settings_page,
    "docs/reference/cli.md": cli_page,
    "docs/reference/metrics.md": metrics_page,
    "docs/reference/client-options.md": client_options_page,
}


def _helps(command: click.Command, parent: click.Context | None, name: str) -> Iterator[tuple[str, str]]:
    context = click.Context(
        command, parent=parent, info_name=name, terminal_width=WIDTH, **command.context_settings
    )
    yield context.command_path, command.get_help(context).rstrip()
    if isinstance(command, click.Group):
        for part in command.list_commands(context):
            child = command.get_command(context, part)
            assert child is not None
            yield from _helps(child, context, part)


def _default(name: str) -> str:
    default = FIELDS[name].default
    if default is None:
        return "unset"
    if isinstance(default, bool):
        return "`true`" if default else "`false`"
    if isinstance(default, tuple):
        return f"`{','.join(default)}`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def _allowed(name: str) -> str:
    return _kind(get_type_hints(Settings, include_extras=True)[name], [])


def _kind(hint: Any, bounds: list[Meta]) -> str:
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *notes = get_args(hint)
        return _kind(inner, bounds + [note for note in notes if isinstance(note, Meta)])
    if origin in (Union, UnionType):
        return _kind(next(part for part in get_args(hint) if part is not NoneType), bounds)
    if origin is dict:
        return "table of text"
    if origin is tuple:
        return f"list of {_kind(get_args(hint)[0], [])}"
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in get_args(hint))
    words = {int: "whole number", float: "number", str: "text", bool: "`true`, `false`"}
    return words[hint] + "".join(_bound(meta) for meta in bounds)


def _bound(meta: Meta) -> str:
    told = ""
    if meta.ge is not None:
        told += f", from {meta.ge:g}" if meta.ge < 1e6 else f", from {int(meta.ge)}"
    if meta.gt is not None:
        told += f", above {meta.gt:g}"
    if meta.le is not None:
        told += f", up to {int(meta.le)}"
    return told


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(_cli_page())
