"""Progress of commands with several steps, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click


@contextmanager
def progress_bars(quiet: bool, labels: Mapping[str, str]) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar for each step, one below the other; call it with the step, what is done, and the total."""
    bars: dict[str, Any] = {}

    def progress(what: str, done: int, total: int) -> None:
        if what not in bars:
            finish()
            bars[what] = click.progressbar(
                length=total, label=f"{labels[what]:<10}", file=sys.stderr, hidden=quiet
            )
            bars[what].__enter__()
        bars[what].update(done - bars[what].pos)

    def finish() -> None:
        for bar in bars.values():
            if not bar.finished:
                bar.finish()
                bar.render_finish()

    try:
        yield progress
    finally:
        finish()
