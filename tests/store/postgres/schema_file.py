"""The list of what the migrations make in PostgreSQL: `python -m tests.store.postgres.schema_file` writes it anew."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Final

import psycopg

import unisono.store
from tests.store.postgres.server import TEMPLATE, shared_server
from unisono.store.postgres.connect import SQL

FILE: Final = Path(unisono.store.__file__).parent / "sql" / "postgres" / "schema.tsv"


def made_schema() -> str:
    """What `unisono db init` makes, as the catalogue tells it."""
    with closing(psycopg.connect(shared_server().dsn(TEMPLATE))) as connection:
        rows = connection.execute(SQL["check_schema"]).fetchall()
    return "".join("\t".join(row) + "\n" for row in rows)


if __name__ == "__main__":
    FILE.write_text(made_schema(), encoding="utf-8")
