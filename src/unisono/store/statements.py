"""SQL files: the named queries and the numbered migrations of one engine, and the schema these make.

A query begins at its line `-- name: …` and ends at the next one. A migration is a file `0001_what.sql`; its
number is the schema version it leads to, and the numbers have no holes. `schema.tsv` lists what there is after all
of them, for an engine that cannot make it aside to compare with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import msgspec

from unisono.sql_files import parse_queries

_MIGRATION_FILE = re.compile(r"^(\d{4})_\w+\.sql$")


class Migration(msgspec.Struct, frozen=True):
    """One step of a schema: running `script` on version `number - 1` gives version `number`."""

    number: int
    name: str
    script: str


@cache
def load_queries(engine: str) -> Mapping[str, str]:
    """The named queries of `engine`, without their comments."""
    text = files("unisono.store").joinpath("sql", engine, "queries.sql").read_text("utf-8")
    return parse_queries(text, f"sql/{engine}/queries.sql")


@cache
def load_migrations(engine: str) -> tuple[Migration, ...]:
    """The migrations of `engine`, in order from 1."""
    found = []
    for file in files("unisono.store").joinpath("sql", engine).iterdir():
        if match := _MIGRATION_FILE.match(file.name):
            found.append(Migration(int(match[1]), file.name, file.read_text("utf-8")))
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"the migrations in sql/{engine} are not numbered 1, 2, 3, … without holes")
    return tuple(found)


@cache
def load_schema(engine: str) -> tuple[tuple[str, ...], ...]:
    """What the migrations of `engine` make, in the form of its query `check_schema`."""
    text = files("unisono.store").joinpath("sql", engine, "schema.tsv").read_text("utf-8")
    return tuple(tuple(line.split("\t")) for line in text.splitlines())
