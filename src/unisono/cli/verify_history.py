"""`unisono verify-history`: did a server keep its promises, by what its clients saw?"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import click

from unisono.cli.store_option import EXIT_UNUSABLE
from unisono.history.check import check_history
from unisono.history.findings import INVARIANTS, Verdict
from unisono.history.records import HistoryUnreadable, Located, read_history
from unisono.lake.errors import LakeUnusable
from unisono.pipeline.errors import PipelineError

SHOWN_PER_INVARIANT = 10


@click.command("verify-history")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--log", "log", metavar="STORE", help="Read the log at the end: a data directory or postgresql://…"
)
@click.option("--lake", "lake", metavar="LOCATION", help="Read the lake at the end.")
def verify_history(files: tuple[Path, ...], log: str | None, lake: str | None) -> None:
    """Check what clients sent and received, recorded in FILES, against the promises of the protocol.

    The format of the files is described in docs/protocol/history.md. With --log and --lake storage is read too, and
    what was acknowledged must be there; nobody may write to it meanwhile.

    Exit code 0: every promise that the history can tell of was kept; 1: one was broken, with what and where; 2: a
    file is no history, or storage cannot be read.

    \b
      unisono verify-history clients.jsonl faults.jsonl --log /var/lib/unisono
    """
    try:
        verdict = check_history(chain(read_history(files), _final_read(log, lake)))
    except (HistoryUnreadable, PipelineError, LakeUnusable) as error:
        click.echo(f"unisono: {error}", err=True)
        sys.exit(EXIT_UNUSABLE)
    click.echo(_text(verdict))
    sys.exit(0 if verdict.sound else 1)


def _final_read(log: str | None, lake: str | None) -> Iterator[Located]:
    from unisono.history.final_read import read_lake, read_log
    from unisono.lake.lake import Lake
    from unisono.pipeline.open_log import open_reader

    if log is not None:
        reader = open_reader(log)
        try:
            for record in read_log(reader):
                yield Located("the log", record)
        finally:
            reader.close()
    if lake is not None:
        for record in read_lake(Lake.at(lake)):
            yield Located("the lake", record)


def _text(verdict: Verdict) -> str:
    lines = []
    for check in verdict.checks:
        says = "kept" if check.checked else "not checked"
        count = f" {check.checked:,}" if check.checked else ""
        if check.findings:
            says, count = "BROKEN", f" {len(check.findings):,} of {check.checked:,}"
        lines.append(f"{check.invariant:4} {says:11}{count:>18}  {INVARIANTS[check.invariant]}")
    for check in verdict.checks:
        for finding in check.findings[:SHOWN_PER_INVARIANT]:
            where = f" ({finding.where})" if finding.where else ""
            lines.append(f"{finding.invariant}: {finding.text}{where}")
        if len(check.findings) > SHOWN_PER_INVARIANT:
            lines.append(f"{check.invariant}: and {len(check.findings) - SHOWN_PER_INVARIANT:,} more")
    return "\n".join(lines)
