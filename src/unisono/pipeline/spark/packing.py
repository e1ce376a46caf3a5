"""Packs this package into one file, for executors on machines without it: `--py-files`.

python -m unisono.pipeline.spark.packing unisono.zip
"""

from __future__ import annotations

import struct
import sys
import zipfile
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from pathlib import Path
from typing import Final

import unisono

_KEPT: Final = frozenset((".py", ".sql", ".json", ".toml", ".typed"))
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def pack(target: Path, *, compiled: bool = False) -> Path:
    """Write the package to `target`; the same sources give the same bytes.

    `compiled`: also as compiled here, which saves a second in each new process with the same Python; others compile
    the sources.
    """
    root = Path(unisono.__file__).parent
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.suffix in _KEPT:
                name = f"unisono/{path.relative_to(root).as_posix()}"
                _add(archive, name, path.read_bytes())
                if compiled and path.suffix == ".py" and (code := _compiled(path)) is not None:
                    _add(archive, f"{name}c", code)
    return target


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, content)


def _compiled(source: Path) -> bytes | None:
    """What Python has cached of a module, if it is current, to be used without a look at the source (PEP 552)."""
    try:
        cached, stat = Path(cache_from_source(str(source))).read_bytes(), source.stat()
    except (OSError, NotImplementedError):
        return None
    current = MAGIC_NUMBER + struct.pack(
        "<III", 0, int(stat.st_mtime) & 0xFFFFFFFF, stat.st_size & 0xFFFFFFFF
    )
    if cached[:16] != current:
        return None
    return MAGIC_NUMBER + struct.pack("<I", 1) + source_hash(source.read_bytes()) + cached[16:]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m unisono.pipeline.spark.packing FILE.zip")
    pack(Path(sys.argv[1]))
