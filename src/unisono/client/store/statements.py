"""The SQL of a client's store: `sql/queries.sql` by name, the schema, and the migrations to it."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from unisono.sql_files import parse_queries


def _read(name: str) -> str:
    return files("unisono.client.store").joinpath("sql", name).read_text("utf-8")


SQL: Final = parse_queries(_read("queries.sql"), "client/store/sql/queries.sql")

SCHEMA_VERSION: Final = 5

SCHEMA: Final = _read("schema.sql") + _read("triggers.sql") + _read("draft_triggers.sql")

MIGRATIONS: Final = {
    1: _read("0002_bases.sql"),
    2: _read("0003_checksums.sql") + _read("triggers.sql"),
    3: _read("0004_authors.sql"),
    4: _read("0005_transactions.sql") + _read("draft_triggers.sql"),
}
"""From each earlier schema version to the next."""
