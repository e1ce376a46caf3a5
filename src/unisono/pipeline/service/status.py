"""Whether the status file of a service can be written where it is wanted."""

from __future__ import annotations

import tempfile
from pathlib import Path

from unisono.pipeline.errors import PipelineError


def require_writable(path: Path) -> None:
    """Refuse a path where the status cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a directory")
    except OSError as error:
        raise PipelineError(
            f"cannot write the status to {path} ({error}): name another file with --status"
        ) from error
