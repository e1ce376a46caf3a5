"""Named queries in SQL files: a query begins after its line `-- name: …` and ends at the next one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

_NAME_LINE = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def parse_queries(text: str, file: str) -> Mapping[str, str]:
    """The queries of a file by name, without their comments."""
    _, *parts = _NAME_LINE.split(text)
    queries: dict[str, str] = {}
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        if name in queries:
            raise ValueError(f"{file} names {name!r} twice")
        lines = [line for line in body.splitlines() if line and not line.startswith("--")]
        queries[name] = "\n".join(lines).removesuffix(";")
    return MappingProxyType(queries)
