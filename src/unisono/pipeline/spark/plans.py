"""Shows the plans of the DataFrames that a job runs: `unisono lake … --explain`."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Show = Callable[[str], None]

_show: Show | None = None


@contextmanager
def plans_shown(show: Show) -> Iterator[None]:
    """Pass the plan of each DataFrame that is run within to `show`, before it runs."""
    global _show  # noqa: PLW0603 (plans belong to the process, as its Spark session does)
    before, _show = _show, show
    try:
        yield
    finally:
        _show = before


def show_plan(name: str, frame: DataFrame) -> None:
    """`name` says what the DataFrame is for."""
    if _show is not None:
        text = io.StringIO()
        with redirect_stdout(text):
            frame.explain("formatted")
        _show(f"-- {name}\n{text.getvalue().strip()}\n")
