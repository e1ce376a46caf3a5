"""Which events are refused, and the field each refusal names, for canonical and tree events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.behaviour.server.harness import Peer, Server, item, new_id, running, set_event, tree_event
from tests.behaviour.server.submitting import event, fields

RULES = """
from unisono.model.rules import Event, Rules, refuse

rules = Rules()

@rules.check("task.done")
def there_is_such_a_task(state, event: Event):
    if event.data["id"] not in state.get("tasks", {}):
        yield refuse("id", "there is no such task")

@rules.reduce("task.created")
def created(state, event: Event) -> None:
    state.setdefault("tasks", {})[event.data["id"]] = event.data["title"]
"""


SCHEMAS: dict[str, dict[str, Any]] = {
    "task.created": {
        "type": "object",
        "properties": {
            "id": {"type": "string", "minLength": 1},
            "title": {"type": "string", "maxLength": 20},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["id", "title"],
        "additionalProperties": False,
    },
    "task.done": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
    "anything": {},
}


@pytest.fixture(scope="module")
def modelled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model of tasks: three schemas and a rule that looks at the state."""
    directory = tmp_path_factory.mktemp("modelled")
    model = directory / "model"
    (model / "schemas").mkdir(parents=True)
    (model / "model.toml").write_text('name = "tasks"\nmodel_version = 7\nrules = "rules.py"\n')
    (model / "rules.py").write_text(RULES)
    for name, schema in SCHEMAS.items():
        (model / "schemas" / f"{name}.json").write_text(json.dumps(schema))
    with running(directory / "data", "--model", str(model), "--access-default", "allow") as started:
        yield started


@pytest.fixture
def canonical(modelled: Server, who: str) -> Iterator[Peer]:
    with modelled.client(who, "canonical") as connected:
        yield connected


@pytest.mark.req("VAL-02")
def test_canonical_events_that_satisfy_their_schema_commit(canonical: Peer, part: str) -> None:
    events = [
        event("task.created", {"id": "a", "title": "Buy milk"}),
        event("task.created", {"id": "b", "title": "x" * 20, "tags": ["t"]}, meta={"any": ["thing", None]}),
        event("task.created", {"id": "c", "title": "c"}, meta={}),
        event("anything", None),
        event("anything", [1, "two", {"three": 3.5}]),
        event("task.done", {"id": "a"}),
        event("task.done", {"id": "a"}, trace={"span": [1, None]}, Schema=7, version="2"),
    ]
    results = canonical.submit(*(item([part], one) for one in events))
    assert [result["status"] for result in results] == ["committed"] * len(events)
    assert [stored["event"] for stored in canonical.history([part])] == events


@pytest.mark.req("VAL-02", "ORD-04", "ORD-06", "BCAST-05")
def test_other_keys_of_the_payload_are_part_of_the_event(
    modelled: Server, canonical: Peer, part: str
) -> None:
    with modelled.client(f"{part}-b", "canonical") as listener:
        listener.subscribe(part)
        sent = item([part], event("anything", 1, trace={"span": "a"}))
        (first,) = canonical.submit(sent)
        assert first["status"] == "committed"
        assert listener.expect("event_broadcast")["event"] == sent["event"]
        again, other, without = (
            canonical.submit(sent | {"event": changed})[0]
            for changed in (
                sent["event"],
                event("anything", 1, trace={"span": "b"}),
                event("anything", 1),
            )
        )
        assert again == first
        assert fields(other) == fields(without) == ["event"]


DATA = "event.payload.data"


CANONICAL_REFUSALS: dict[str, tuple[Any, list[str]]] = {
    "no payload": ({"type": "event"}, ["event.payload"]),
    "payload no object": ({"type": "event", "payload": []}, ["event.payload"]),
    "schema missing": ({"type": "event", "payload": {"data": 1}}, ["event.payload.schema"]),
    "schema empty": (event("", 1), ["event.payload.schema"]),
    "schema no string": ({"type": "event", "payload": {"schema": 1, "data": 1}}, ["event.payload.schema"]),
    "schema unknown": (event("task.dropped", {}), ["event.payload.schema"]),
    "data missing": ({"type": "event", "payload": {"schema": "anything"}}, [DATA]),
    "another key instead of data": (
        {"type": "event", "payload": {"schema": "anything", "Data": 1}},
        [DATA],
    ),
    "meta no object": (event("anything", 1, meta=[]), ["event.payload.meta"]),
    "meta null": (event("anything", 1, meta=None), ["event.payload.meta"]),
    "data of the wrong type": (event("task.created", []), [DATA]),
    "a property missing": (event("task.created", {"id": "a"}), [f"{DATA}.title"]),
    "a property too long": (event("task.created", {"id": "a", "title": "x" * 21}), [f"{DATA}.title"]),
    "an unknown property": (event("task.created", {"id": "a", "title": "a", "due": 1}), [f"{DATA}.due"]),
    "deep inside": (event("task.created", {"id": "a", "title": "a", "tags": ["t", 2]}), [f"{DATA}.tags.1"]),
    "several": (
        event("task.created", {"id": "", "title": 1}, extra=1),
        [f"{DATA}.id", f"{DATA}.title"],
    ),
    "a rule of the model": (event("task.done", {"id": "nobody"}), [f"{DATA}.id"]),
    "another type": ({"type": "Event", "payload": {"schema": "anything", "data": 1}}, ["event.type"]),
    "no type": ({"payload": {"schema": "anything", "data": 1}}, ["event.type"]),
    "a tree action": (set_event("x", 1), ["event.type"]),
    "init": ({"type": "init", "payload": {"value": {}}}, ["event.type"]),
}


@pytest.mark.req("VAL-01", "VAL-02", "SUBMIT-05", "PROF-07")
@pytest.mark.parametrize(("wrong", "told"), CANONICAL_REFUSALS.values(), ids=CANONICAL_REFUSALS)
def test_canonical_refusals_name_their_field(
    canonical: Peer, part: str, wrong: dict[str, Any], told: list[str]
) -> None:
    good, bad, after = canonical.submit(
        item([part], event("anything", 1)), item([part], wrong), item([part], event("anything", 2))
    )
    assert fields(bad) == told
    assert after["committed_id"] == good["committed_id"] + 1
    canonical.send("submit_event", item([part], wrong))
    single = canonical.expect("event_rejected")
    assert single["errors"] == bad["errors"]  # the same errors in the same order (VAL-05)
    assert len(canonical.history([part])) == 2


@pytest.mark.req("VAL-01", "SUBMIT-02")
def test_rules_see_committed_state_plus_earlier_items(canonical: Peer, part: str) -> None:
    early, _, late, elsewhere = canonical.submit(
        item([part], event("task.done", {"id": "a"})),
        item([part], event("task.created", {"id": "a", "title": "a"})),
        item([part], event("task.done", {"id": "a"})),
        item([part, f"{part}-2"], event("task.done", {"id": "a"})),
    )
    assert (early["status"], late["status"]) == ("rejected", "committed")
    assert fields(elsewhere) == [f"{DATA}.id"]
    assert canonical.commit([part], event("task.done", {"id": "a"}))


PAYLOAD = "event.payload"


TREE_REFUSALS: dict[str, tuple[Any, list[str]]] = {
    "an unknown action": ({"type": "treeCopy", "payload": {}}, ["event.type"]),
    "no type": ({"payload": {}}, ["event.type"]),
    "type no string": ({"type": ["set"], "payload": {}}, ["event.type"]),
    "no payload": ({"type": "set"}, [PAYLOAD]),
    "payload no object": ({"type": "set", "payload": "x"}, [PAYLOAD]),
    "set without all": ({"type": "set", "payload": {}}, [f"{PAYLOAD}.target", f"{PAYLOAD}.value"]),
    "set at an empty path": (set_event("", 1), [f"{PAYLOAD}.target"]),
    "set at an empty segment": (set_event("a..b", 1), [f"{PAYLOAD}.target"]),
    "set an array without replace": (set_event("a", [1], replace=False), [f"{PAYLOAD}.value"]),
    "replace no boolean": (
        {"type": "set", "payload": {"target": "a", "value": 1, "options": {"replace": 1}}},
        [f"{PAYLOAD}.options.replace"],
    ),
    "options no object": (
        {"type": "set", "payload": {"target": "a", "value": 1, "options": []}}, [f"{PAYLOAD}.options"]
    ),
    "unset without target": ({"type": "unset", "payload": {}}, [f"{PAYLOAD}.target"]),
    "init with no object": ({"type": "init", "payload": {"value": []}}, [f"{PAYLOAD}.value"]),
    "init with another id in an item": (
        {"type": "init", "payload": {"value": {"x": {"items": {"A": {"id": "B"}}, "tree": [
            {"id": "A", "children": []}]}}}},
        [f"{PAYLOAD}.value.x.items.A.id"],
    ),
    "push of no object": ({"type": "treePush", "payload": {"target": "t", "value": 1}}, [f"{PAYLOAD}.value"]),
    "push without id": (
        {"type": "treePush", "payload": {"target": "t", "value": {"name": "x"}}}, [f"{PAYLOAD}.value.id"]
    ),
    "push of _root": (tree_event("_root"), [f"{PAYLOAD}.value.id"]),
    "push at a wrong position": (
        {"type": "treePush", "payload": {"target": "t", "value": {"id": "x"}, "options": {"position": "middle"}}},
        [f"{PAYLOAD}.options.position"],
    ),
    "push after a number": (
        {"type": "treePush", "payload": {"target": "t", "value": {"id": "x"},
                                         "options": {"position": {"after": 1}}}},
        [f"{PAYLOAD}.options.position.after"],
    ),
    "push below nobody": (
        {"type": "treePush", "payload": {"target": "t", "value": {"id": "x"}, "options": {"parent": "no"}}},
        [f"{PAYLOAD}.options.parent"],
    ),
    "update without id": (
        {"type": "treeUpdate", "payload": {"target": "t", "value": {}}}, [f"{PAYLOAD}.options.id"]
    ),
    "delete of nobody": (
        {"type": "treeDelete", "payload": {"target": "t", "options": {"id": "no"}}}, [f"{PAYLOAD}.options.id"]
    ),
    "move without all": (
        {"type": "treeMove", "payload": {}}, [f"{PAYLOAD}.target", f"{PAYLOAD}.options.id"]
    ),
    "a canonical event": (event("anything", 1), ["event.type"]),
}  # fmt: skip


@pytest.mark.req("VAL-01", "VAL-04", "SUBMIT-05", "PROF-07")
@pytest.mark.parametrize(("wrong", "told"), TREE_REFUSALS.values(), ids=TREE_REFUSALS)
def test_tree_refusals_name_their_field(
    peer: Peer, part: str, wrong: dict[str, Any], told: list[str]
) -> None:
    id = new_id()
    good, bad, after = peer.submit(
        item([part], tree_event("A", "t")), item([part], wrong, id), item([part], tree_event("B", "t"))
    )
    assert fields(bad) == told
    assert after["committed_id"] == good["committed_id"] + 1
    assert peer.commit([part], tree_event("C", "t"), id) == after["committed_id"] + 1
