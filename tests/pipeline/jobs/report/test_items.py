"""What an event edits: Python and SQL agree."""

from __future__ import annotations

from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.pipeline.jobs.report.duck import know_odd_items, load_report_queries
from unisono.pipeline.jobs.report.items import Item, item_of, short_event
from unisono.protocol.canonical import canonical

KINDS = (
    "event",
    "set",
    "unset",
    "treePush",
    "treeUpdate",
    "treeDelete",
    "treeMove",
    "treeGrow",
    "init",
    "other",
)

texts = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(
    ["", "null", "true", "7", "a.b", ".", "a.\nb", "\x00", '"', "\\", "日本", "n1"]
)
scalars = (
    st.none()
    | st.booleans()
    | texts
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
named = st.fixed_dictionaries({}, optional={"id": values, "other": values}) | values
payloads = (
    st.fixed_dictionaries({}, optional={"data": named, "target": values, "value": named, "options": named})
    | values
)
events = st.fixed_dictionaries({}, optional={"payload": payloads}) | values
rows = st.tuples(
    st.none() | st.sampled_from(KINDS),
    st.none() | texts,
    events.map(canonical) | st.sampled_from([b"{damaged", b"", b'"\\ud800"']),
)


def items_by_sql(edits: list[tuple[str | None, str | None, bytes]]) -> list[Item | None]:
    kinds, schemas, bodies = zip(*edits, strict=True)
    numbers = pa.array(range(len(edits)), pa.int64())
    table = pa.table(
        {
            "partition": pa.array(["p"] * len(edits)),
            "committed_id": numbers,
            "client_id": pa.array(["c"] * len(edits)),
            "at_ms": numbers,
            "event": pa.array([body.decode() for body in bodies], pa.string()),
            "type": pa.array(kinds, pa.string()),
            "schema": pa.array(schemas, pa.string()),
            "bytes": numbers,
            "step": numbers,
        }
    )
    with duckdb.connect() as connection:
        know_odd_items(connection)
        connection.register("edits", table)
        connection.execute(load_report_queries("places")["items"])
        found = connection.execute("SELECT family, place, node FROM items ORDER BY committed_id").fetchall()
    return [None if family is None else (family, place, node) for family, place, node in found]


@settings(max_examples=60)
@given(st.lists(rows, min_size=1, max_size=30))
def test_sql_names_what_python_names(edits: list[tuple[str | None, str | None, bytes]]) -> None:
    assert items_by_sql(edits) == [item_of(*edit) for edit in edits]


@given(rows)
def test_a_shortened_event_names_the_same(edit: tuple[str | None, str | None, bytes]) -> None:
    kind, schema, event = edit
    assert item_of(kind, schema, short_event(event.decode()).encode()) == item_of(*edit)


@pytest.mark.parametrize(
    ("kind", "schema", "event", "item"),
    [
        ("event", "note.added", {"payload": {"data": {"id": 7}}}, ("event", "note", "7")),
        ("event", "note", {"payload": {"data": {"id": True}}}, ("event", "note", "true")),
        ("event", "a.b.c", {"payload": {"data": {"id": {"x": [1]}}}}, ("event", "a.b", '{"x":[1]}')),
        ("event", "note.added", {"payload": {"data": [1]}}, None),
        ("event", "note.added", {"payload": {"data": {"id": None}}}, None),
        ("event", None, {"payload": {"data": {"id": "x"}}}, None),
        ("set", None, {"payload": {"target": "a.b"}}, ("path", "a.b", "")),
        ("set", None, {"payload": {}}, None),
        ("init", None, {}, ("path", "", "")),
        ("treeMove", None, {"payload": {"target": "t", "options": {"id": "n"}}}, ("tree", "t", "n")),
        ("treePush", None, {"payload": {"target": "t", "value": "n"}}, None),
        ("treeGrow", None, {"payload": {"target": "t"}}, None),
        (None, None, {}, None),
        ("set", None, [1], None),
    ],
)
def test_what_an_event_edits(kind: str | None, schema: str | None, event: Any, item: Any) -> None:
    body = msgspec.json.encode(event)
    assert item_of(kind, schema, body) == item
    assert items_by_sql([(kind, schema, body), ("set", None, b"{damaged")]) == [item, None]
