"""The items of trees in states, as rows: what a table of notes, cards or lines is made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

import pyarrow as pa

from unisono.lake.snapshots import StateRow
from unisono.model.pack import unpack
from unisono.pipeline.deep_json import text
from unisono.store.batching import in_batches
from unisono.vocabulary import Json

ITEMS_SCHEMA: Final = (
    "partition STRING, committed_id BIGINT, target STRING, id STRING, parent STRING, position BIGINT, depth BIGINT, "
    "value STRING"
)
"""`target`: the tree's name. `parent`: null for items at the top. `position`: among the items of the same parent,
from 0. `value`: JSON."""

_SCHEMA: Final = pa.schema(
    [
        ("partition", pa.string()),
        ("committed_id", pa.int64()),
        ("target", pa.string()),
        ("id", pa.string()),
        ("parent", pa.string()),
        ("position", pa.int64()),
        ("depth", pa.int64()),
        ("value", pa.string()),
    ]
)
BATCH_ROWS: Final = 4_096
BATCH_BYTES: Final = 4 << 20
"""Bounds of one Arrow batch of a worker."""

Item: TypeAlias = tuple[str, str, str | None, int, int, Json]
"""Target, id, parent, position, depth and value."""


def item_rows(states: Iterable[StateRow]) -> Iterator[pa.RecordBatch]:
    """The items of states, in batches."""
    for rows in in_batches(
        _rows(states), lambda row: len(row[-1]), count_max=BATCH_ROWS, bytes_max=BATCH_BYTES
    ):
        yield _batch(rows)


def _rows(states: Iterable[StateRow]) -> Iterator[tuple[Any, ...]]:
    for state in states:
        for *place, value in items_of(unpack(state.state)):
            yield (state.partition, state.committed_id, *place, text(value))


def items_of(state: Json) -> Iterator[Item]:
    """The items of every tree in a state, a parent before its children; without recursion, trees may be deep."""
    waiting: list[tuple[str, Json]] = []
    trees = state.get("tree") if isinstance(state, dict) else None
    if isinstance(trees, dict):
        waiting = list(trees.items())
    while waiting:
        target, value = waiting.pop()
        if not isinstance(value, dict):
            continue
        items, roots = value.get("items"), value.get("tree")
        is_tree = isinstance(items, dict) and isinstance(roots, list)
        if isinstance(items, dict) and isinstance(roots, list):
            yield from _items_of_tree(target, items, roots)
        waiting += [
            (f"{target}.{name}", part)
            for name, part in value.items()
            if not (is_tree and name in ("items", "tree"))
        ]


def _items_of_tree(target: str, items: dict[str, Json], roots: list[Json]) -> Iterator[Item]:
    nodes: list[tuple[Any, str | None, int, int]] = [
        (node, None, place, 0) for place, node in enumerate(roots)
    ]
    nodes.reverse()
    while nodes:
        node, parent, position, depth = nodes.pop()
        yield target, node["id"], parent, position, depth, items.get(node["id"])
        children = [
            (child, node["id"], place, depth + 1) for place, child in enumerate(node.get("children", ()))
        ]
        nodes += reversed(children)


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [
        pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), _SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
