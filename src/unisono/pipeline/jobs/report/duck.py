"""DuckDB with bounded memory, and the named queries of a report."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any

import duckdb
from duckdb.func import FunctionNullHandling

from unisono.pipeline.jobs.report.items import ODD_ITEM_TYPE, odd_item
from unisono.sql_files import parse_queries


@contextmanager
def bounded_duckdb(threads: int, memory_max: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """An empty database in memory. What needs more than `memory_max` goes to temporary files, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="unisono-duckdb-") as folder:
        config: dict[str, str | bool | int | float | list[str]] = {
            "threads": threads,
            "memory_limit": memory_max,
            "temp_directory": folder,
            "python_enable_replacements": False,  # a name in SQL is never a variable of Python
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        with duckdb.connect(config=config) as connection:
            yield connection


def know_odd_items(connection: duckdb.DuckDBPyConnection) -> None:
    """Make `odd_item` a function in SQL."""
    texts: list[Any] = ["varchar", "varchar", "varchar"]
    connection.create_function(
        "odd_item", odd_item, texts, ODD_ITEM_TYPE, null_handling=FunctionNullHandling.SPECIAL
    )


@cache
def load_report_queries(name: str) -> Mapping[str, str]:
    """The queries of `sql/<name>.sql`."""
    text = files("unisono.pipeline.jobs.report").joinpath("sql", f"{name}.sql").read_text("utf-8")
    return parse_queries(text, f"report/sql/{name}.sql")
