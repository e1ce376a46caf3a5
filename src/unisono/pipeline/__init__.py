"""History in bulk, on Spark: the log as a data source, and its exact copy in a lake of Delta tables.

The functions named here are the Python API (docs/pipeline-python.md). They are imported when first used: importing
this package costs nothing, and nothing here is imported by the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unisono.pipeline.api import (
        audit,
        create_tables,
        create_views,
        diff,
        export,
        make_snapshots,
        read_log,
        read_partitions,
        register,
        session,
        snapshots,
        states_at,
    )

__all__ = [
    "audit",
    "create_tables",
    "create_views",
    "diff",
    "export",
    "make_snapshots",
    "read_log",
    "read_partitions",
    "register",
    "session",
    "snapshots",
    "states_at",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from unisono.pipeline import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
