"""Packs this package into one file, for executors on machines without it: `--py-files`.

python -m unisono.pipeline.spark.packing unisono.zip
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Final

import unisono

_KEPT: Final = frozenset((".py", ".sql", ".json", ".toml", ".typed"))
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def pack(target: Path) -> Path:
    """Write the package to `target`; the same sources give the same bytes."""
    root = Path(unisono.__file__).parent
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.suffix in _KEPT:
                entry = zipfile.ZipInfo(f"unisono/{path.relative_to(root).as_posix()}", _EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, path.read_bytes())
    return target


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m unisono.pipeline.spark.packing FILE.zip")
    pack(Path(sys.argv[1]))
