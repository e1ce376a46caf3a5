"""The snapshots that a store has."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from unisono.pipeline.open_log import open_reader


def watermarks(store: str | Path, model_version: int, model_digest: str = "") -> dict[str, int]:
    """partition → the committed_id of its snapshot of that model."""
    reader: Any = open_reader(str(store))
    with closing(reader):
        return dict(reader.watermarks(model_version, model_digest))
