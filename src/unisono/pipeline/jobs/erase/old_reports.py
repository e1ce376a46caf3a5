"""Removes reports made before an erasure: they name items, clients and partitions, and can be made again."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from unisono.pipeline.errors import PipelineError

_PAGE: Final = "index.html"
_UNFINISHED: Final = ".index.html.unfinished"
_TABLES: Final = "tables"


def require_report(directory: Path) -> None:
    """Refuse a directory that is not a report: other files could be deleted."""
    if not directory.is_dir():
        raise PipelineError(f"{directory} is not a directory")
    strange = [path for path in directory.iterdir() if path.name not in (_PAGE, _UNFINISHED, _TABLES)]
    tables = directory / _TABLES
    strange += [path for path in tables.iterdir() if path.suffix != ".parquet"] if tables.is_dir() else []
    if strange or not tables.is_dir():
        what = f"it has {strange[0].name}" if strange else f"it has no {_TABLES}"
        raise PipelineError(
            f"{directory} is not a report of `unisono lake report` ({what}): nothing was erased"
        )


def remove_report(directory: Path) -> int:
    """Delete a report's page and tables; returns the number of files."""
    require_report(directory)
    files = [path for path in (directory / _PAGE, directory / _UNFINISHED) if path.exists()]
    files += (directory / _TABLES).iterdir()
    for path in files:
        path.unlink()
    return len(files)
