"""JSON objects in which every name stands once. JSON itself lets the last of several win, in silence."""

from __future__ import annotations


def unique_names(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """For `object_pairs_hook`; ValueError names the first key that comes again."""
    table = dict(pairs)
    if len(table) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the key {name!r} comes twice in one object")
            seen.add(name)
    return table
