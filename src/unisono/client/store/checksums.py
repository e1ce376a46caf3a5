"""Checksums of a store's rows: a bit flipped on the disk is found before it is used."""

from __future__ import annotations

from typing import Final
from zlib import crc32

import apsw

from unisono.client.errors import StoreDamaged, StoreFailed

FUNCTION: Final = "row_checksum"

CHECKED_BYTES_MAX: Final = 64 * 1024 * 1024
"""A file up to this size is checked in full when it is opened: 0.2 s for 100,000 events, in 31 MB."""

DAMAGE: Final = (apsw.CorruptError, apsw.NotADBError, apsw.SQLError)
"""Errors of a damaged file. The statements are fixed, so an SQLError means that the schema is another."""

SMALL: Final = ("meta", "partitions", "drafts")
"""Tables that are checked in a larger file too: their content cannot be fetched again, or says what can."""


def row_checksum(*values: apsw.SQLiteValue) -> int:
    """A checksum of the values of one row, in their order."""
    total = 0
    for value in values:
        total = crc32(value if isinstance(value, bytes) else str(value).encode(), total)
        total = crc32(b"\0", total)
    return total


def damaged(path: str, what: str) -> StoreDamaged:
    return StoreDamaged(
        f"{path} is damaged: {what}. Move it away and open a new store: what was committed comes from the server"
        f" again. Drafts that were not sent are in the damaged file alone; `sqlite3 {path} .recover` may find them"
    )


def store_failure(path: str, doing: str, error: Exception) -> StoreFailed:
    """The error for the program when SQLite fails or a row cannot be read."""
    if isinstance(error, DAMAGE) or not isinstance(error, apsw.Error):
        return damaged(path, f"{doing} failed: {error}")
    return StoreFailed(f"{path}: {doing} failed: {error}")


def check_file(connection: apsw.Connection, path: str) -> None:
    """Check the structure of the file; StoreDamaged when it is broken."""
    pages, size = connection.pragma("page_count"), connection.pragma("page_size")
    assert isinstance(pages, int)
    assert isinstance(size, int)
    tables = [""] if pages * size <= CHECKED_BYTES_MAX else [f"('{name}')" for name in SMALL]
    for table in tables:
        found = connection.execute(f"PRAGMA quick_check{table}").fetchall()
        if found != [("ok",)]:
            raise damaged(path, str(found[0][0]).replace("\n", " "))
