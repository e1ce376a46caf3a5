"""Submitting: the request as a whole, its items one by one, and the answer to each generation of clients."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.server.harness import Peer, Server, item, new_id, running, set_event, tree_event
from unisono.store.sqlite.log import SqliteReader

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
def peer(server: Server, who: str) -> Iterator[Peer]:
    """Compatibility profile."""
    with server.client(who) as connected:
        yield connected


@pytest.fixture
def canonical(modelled: Server, who: str) -> Iterator[Peer]:
    with modelled.client(who, "canonical") as connected:
        yield connected


def event(schema: str, data: Any, **more: Any) -> dict[str, Any]:
    return {"type": "event", "payload": {"schema": schema, "data": data, **more}}


def fields(result: dict[str, Any]) -> list[str]:
    """The fields a rejected item is told of."""
    assert result["status"] == "rejected", result
    assert result["reason"] == "validation_failed"
    assert all(error["message"] for error in result["errors"])
    return [error["field"] for error in result["errors"]]


# -- the request as a whole ----------------------------------------------------------------------------------


def _wrong_requests() -> dict[str, Any]:
    good = item(["p"], set_event("x", 1), "good")
    without = {name: {key: part for key, part in good.items() if key != name} for name in good}
    return {
        "no events": {},
        "events null": {"events": None},
        "events an object": {"events": {"0": good}},
        "events empty": {"events": []},
        "101 events": {"events": [good | {"id": f"n{n}"} for n in range(101)]},
        "an item is a string": {"events": [good, "x"]},
        "an item is null": {"events": [good, None]},
        "no id": {"events": [good, without["id"]]},
        "id a number": {"events": [good, good | {"id": 7}]},
        "id null": {"events": [good, good | {"id": None}]},
        "id empty": {"events": [good, good | {"id": ""}]},
        "id too long": {"events": [good, good | {"id": "i" * 129}]},
        "id twice": {"events": [good, good | {"id": "between"}, good]},
        "id twice with another event": {"events": [good, good | {"event": set_event("x", 2)}]},
        "no event": {"events": [good, without["event"] | {"id": "other"}]},
        "event null": {"events": [good, good | {"id": "other", "event": None}]},
        "event a string": {"events": [good, good | {"id": "other", "event": "set"}]},
        "event an array": {"events": [good, good | {"id": "other", "event": []}]},
        "no partitions": {"events": [good, without["partitions"] | {"id": "other"}]},
    }


@pytest.mark.req("SUBMIT-01")
@pytest.mark.parametrize("payload", _wrong_requests().values(), ids=_wrong_requests())
def test_a_request_of_the_wrong_shape_commits_nothing(peer: Peer, part: str, payload: Any) -> None:
    text = json.dumps(peer.envelope("submit_events", payload)).replace('"p"', f'"{part}"')
    peer.raw(text)
    peer.expect_error("bad_request")
    assert peer.history([part]) == []


@pytest.mark.req("SUBMIT-01", "SUBMIT-04", "LIM-01")
def test_100_events_are_one_request_and_have_one_answer(peer: Peer, part: str) -> None:
    items = [item([part], tree_event(f"n{n}")) for n in range(100)]
    results = peer.submit(*items)
    assert [result["id"] for result in results] == [one["id"] for one in items]
    ids = [result["committed_id"] for result in results]
    assert ids == list(range(ids[0], ids[0] + 100))
    peer.expect_quiet()


@pytest.mark.req("SUBMIT-01", "SUBMIT-06")
@pytest.mark.parametrize("change", [{"id": ""}, {"id": "i" * 129}, {"id": 3}, {"event": 3}, {"event": []}])
def test_a_single_event_of_the_wrong_shape_is_bad_request(
    peer: Peer, part: str, change: dict[str, Any]
) -> None:
    peer.send("submit_event", item([part], set_event("x", 1)) | change)
    peer.expect_error("bad_request")
    assert peer.history([part]) == []


# -- items ---------------------------------------------------------------------------------------------------


@pytest.mark.req("SUBMIT-02", "SUBMIT-03", "SUBMIT-04", "SUBMIT-05", "VAL-01", "VAL-04")
def test_a_mixed_batch(server: Server, part: str) -> None:
    """Every item is judged by what the items before it left, and a failed one takes nothing back."""
    with server.client(f"{part}-a") as peer, server.client(f"{part}-b") as listener:
        listener.subscribe(part)
        items = [
            item([part], tree_event("A")),
            item([part], tree_event("A")),  # exists since the item before
            item([part], {"type": "treePush", "payload": {"target": "explorer", "value": {"id": "B"},
                                                          "options": {"parent": "A"}}}),
            item([part], {"type": "treeDelete", "payload": {"target": "explorer", "options": {"id": "A"}}}),
            item([part], {"type": "treeUpdate", "payload": {"target": "explorer", "value": {"n": 1},
                                                            "options": {"id": "B"}}}),  # gone with A
            item([part], tree_event("A")),  # free again
            item([part], event("anything", 1)),  # of the other profile
        ]  # fmt: skip
        results = peer.submit(*items)
        assert [result["id"] for result in results] == [one["id"] for one in items]
        statuses = [result["status"] for result in results]
        assert statuses == [
            "committed",
            "rejected",
            "committed",
            "committed",
            "rejected",
            "committed",
            "rejected",
        ]
        ids = [result["committed_id"] for result in results if result["status"] == "committed"]
        assert ids == list(range(ids[0], ids[0] + 4))  # a rejected item uses no id up
        assert fields(results[1]) == ["event.payload.value.id"]
        assert fields(results[4]) == ["event.payload.options.id"]
        assert fields(results[6]) == ["event.type"]
        kept = [one["id"] for one, status in zip(items, statuses, strict=True) if status == "committed"]
        assert [listener.expect("event_broadcast")["id"] for _ in kept] == kept
        listener.expect_quiet()
        assert [stored["id"] for stored in peer.history([part])] == kept


@pytest.mark.req("SUBMIT-04", "SUBMIT-05")
def test_the_exact_shape_of_results(peer: Peer, part: str) -> None:
    before = time.time() * 1000
    good, bad = peer.submit(item([part], tree_event("A"), "exact-1"), item([part], tree_event(""), "exact-2"))
    after = time.time() * 1000
    assert good == {
        "id": "exact-1",
        "status": "committed",
        "committed_id": good["committed_id"],
        "status_updated_at": good["status_updated_at"],
    }
    assert bad == {
        "id": "exact-2",
        "status": "rejected",
        "reason": "validation_failed",
        "errors": [{"field": "event.payload.value.id", "message": "must be a non-empty string"}],
        "status_updated_at": bad["status_updated_at"],
    }
    for result in (good, bad):
        assert type(result["status_updated_at"]) is int
        assert before - 1 <= result["status_updated_at"] <= after + 1
    assert type(good["committed_id"]) is int


@pytest.mark.req("SUBMIT-06", "BCAST-05")
def test_the_exact_shape_of_event_committed(server: Server, who: str, part: str) -> None:
    with server.client(who) as peer:
        pushed = tree_event("A", title="Überschrift \U0001f600")
        peer.send(
            "submit_event", item([f"{part}-2", f"{part}-1"], pushed, f"{part}-id", client_id=who, more=1)
        )
        told = peer.expect("event_committed")
        assert told == {
            "id": f"{part}-id",
            "client_id": who,
            "partitions": [f"{part}-1", f"{part}-2"],
            "committed_id": told["committed_id"],
            "event": pushed,
            "status_updated_at": told["status_updated_at"],
        }
        assert type(told["committed_id"]) is int
        peer.expect_quiet()
        assert peer.history([f"{part}-1"]) == [told]


@pytest.mark.req("SUBMIT-05", "SUBMIT-06")
def test_the_exact_shape_of_event_rejected(server: Server, who: str, part: str) -> None:
    with server.client(who) as peer:
        peer.commit([part], tree_event("A"))
        peer.send("submit_event", item([part, part], tree_event("A"), f"{part}-id"))
        told = peer.expect("event_rejected")
        assert told == {
            "id": f"{part}-id",
            "client_id": who,
            "partitions": [part],
            "reason": "validation_failed",
            "errors": [{"field": "event.payload.value.id", "message": told["errors"][0]["message"]}],
            "status_updated_at": told["status_updated_at"],
        }
        assert "already" in told["errors"][0]["message"]
        assert len(peer.history([part])) == 1


@pytest.mark.req("SUBMIT-06", "ORD-03")
def test_both_generations_share_one_log(server: Server, part: str) -> None:
    """A retry in the other generation's words is answered with the first result, its client_id included."""
    with server.client(f"{part}-a") as old, server.client(f"{part}-b") as new:
        sent = item([part], tree_event("A"))
        (result,) = new.submit(sent)
        old.send("submit_event", sent)
        told = old.expect("event_committed")
        assert told["committed_id"] == result["committed_id"]
        assert told["status_updated_at"] == result["status_updated_at"]
        assert told["client_id"] == f"{part}-b"
        assert old.history([part]) == [told]


@pytest.mark.req("SUBMIT-08")
def test_a_rejected_id_can_be_submitted_again(server: Server, part: str) -> None:
    with server.client(f"{part}-a") as peer, server.client(f"{part}-b") as listener:
        listener.subscribe(part)
        head = peer.commit([part], tree_event("Z"))
        listener.expect("event_broadcast")
        update = {
            "type": "treeUpdate",
            "payload": {"target": "explorer", "value": {"n": 1}, "options": {"id": "A"}},
        }
        early = item([part], update)
        for _ in range(2):
            (rejected,) = peer.submit(early)
            assert fields(rejected) == ["event.payload.options.id"]
        peer.send("submit_event", early)
        peer.expect("event_rejected")
        listener.expect_quiet()
        pushed, updated = peer.submit(item([part], tree_event("A")), early)
        assert (pushed["committed_id"], updated["committed_id"]) == (head + 1, head + 2)
        # Another payload under a rejected id is no conflict either.
        (rejected,) = peer.submit(item([part], tree_event("A"), "again-" + part))
        (committed,) = peer.submit(item([part], tree_event("B"), "again-" + part))
        assert (rejected["status"], committed["committed_id"]) == ("rejected", head + 3)


# -- order ---------------------------------------------------------------------------------------------------


@pytest.mark.req("SUBMIT-04", "SUBMIT-09")
def test_pipelined_requests_are_processed_in_the_order_they_arrived(peer: Peer, part: str) -> None:
    """Each request builds on the one before, so any other order is refused."""
    asked: list[list[str]] = []
    for number in range(60):
        parent = {"options": {"parent": f"n{number - 1}"}} if number else {}
        push = {"type": "treePush", "payload": {"target": "t", "value": {"id": f"n{number}"}, **parent}}
        if number % 3 == 0:
            single = item([part], push)
            peer.send("submit_event", single)
            asked.append([single["id"]])
        else:
            update = {"type": "treeUpdate", "payload": {"target": "t", "value": {"n": number},
                                                        "options": {"id": f"n{number}"}}}  # fmt: skip
            batch = [item([part], push), item([part], update)]
            peer.send("submit_events", {"events": batch})
            asked.append([one["id"] for one in batch])
    answered: list[list[str]] = []
    committed: list[int] = []
    for _ in asked:
        message = peer.receive()
        payload = message["payload"]
        results = [payload] if message["type"] == "event_committed" else payload["results"]
        answered.append([result["id"] for result in results])
        committed += [result["committed_id"] for result in results]
    assert answered == asked
    assert all(earlier < later for earlier, later in pairwise(committed))
    assert [stored["id"] for stored in peer.history([part])] == [id for ids in asked for id in ids]


@pytest.mark.req("SUBMIT-09")
def test_a_partition_that_loads_slowly_does_not_change_the_order(tmp_path: Path, who: str) -> None:
    """States longer than one slice are loaded between groups, and what waits for them keeps its place."""
    with running(tmp_path / "data", "--access-default", "allow") as server:
        with server.client(who) as peer:
            for partition, events in (("shorter", 1200), ("longer", 3200)):
                for number in range(events // 100):
                    peer.submit(*(item([partition], set_event("n", [number, n])) for n in range(100)))
        assert server.stop() == 0
        server.start()
        with server.client(who) as peer:
            order = ["shorter", "longer", "shorter", "new", "longer"]
            asked = [item([partition], set_event("n", n)) for n, partition in enumerate(order)]
            for one in asked:
                peer.send("submit_events", {"events": [one]})
            results = [peer.expect("submit_events_result")["results"][0] for _ in asked]
            assert [result["id"] for result in results] == [one["id"] for one in asked]
            assert [result["committed_id"] for result in results] == list(range(4401, 4406))


@pytest.mark.req("SUBMIT-07", "DUR-02")
def test_what_is_told_is_in_the_log_already(server: Server, part: str) -> None:
    """A reader of its own, opened on the same files, finds every event that a result or broadcast names."""
    log = SqliteReader.open(server.data)
    try:
        with server.client(f"{part}-a") as origin, server.client(f"{part}-b") as listener:
            listener.subscribe(part)
            for number in range(20):
                batch = [item([part], set_event("n", [number, n])) for n in range(5)]
                origin.send("submit_events", {"events": batch})
                for one in batch:
                    told = listener.expect("event_broadcast")
                    stored = log.page(
                        [part], told["committed_id"] - 1, told["committed_id"], limit=1, bytes_max=1
                    )
                    assert [record.id for record in stored.records] == [told["id"]] == [one["id"]]
                results = origin.expect("submit_events_result")["results"]
                assert log.head() >= results[-1]["committed_id"]
    finally:
        log.close()


# -- ids -----------------------------------------------------------------------------------------------------


@pytest.mark.req("SUBMIT-10")
@pytest.mark.parametrize(
    ("fits", "too_long"),
    [("i" * 128, "i" * 129), ("\u00e9" * 64, "\u00e9" * 64 + "i"), ("\U0001f600" * 32, "\U0001f600" * 33)],
    ids=["ascii", "two-byte letters", "beyond the BMP"],
)
def test_an_id_has_at_most_128_bytes(peer: Peer, part: str, fits: str, too_long: str) -> None:
    assert len(fits.encode()) == 128
    peer.commit([part], set_event("x", 1), fits)
    assert [stored["id"] for stored in peer.history([part])] == [fits]
    peer.send("submit_events", {"events": [item([part], set_event("x", 2), too_long)]})
    peer.expect_error("bad_request")
    peer.send("submit_event", item([part], set_event("x", 2), too_long))
    peer.expect_error("bad_request")
    assert len(peer.history([part])) == 1


@pytest.mark.req("SUBMIT-10")
def test_ids_are_compared_as_they_are(peer: Peer, part: str) -> None:
    """No normalisation, no trimming: ids that look alike are different."""
    ids = [f"{part}{end}" for end in ("", " ", "A", "a", "\u00e9", "e\u0301", "\x00")]
    results = peer.submit(*(item([part], set_event("x", n), id) for n, id in enumerate(ids)))
    assert len({result["committed_id"] for result in results}) == len(ids)
    assert [stored["id"] for stored in peer.history([part])] == ids


@pytest.mark.req("SUBMIT-10")
def test_real_uuids_can_be_required(tmp_path: Path, who: str) -> None:
    with (
        running(tmp_path / "data", "--access-default", "allow", "--require-uuid-ids") as server,
        server.client(who) as peer,
    ):
        good = str(uuid.uuid4())
        for id in (
            good,
            str(uuid.uuid4()).upper(),
            str(uuid.uuid1()),
            "0195e2c0-7b1c-7000-8000-000000000000",
        ):
            peer.commit(["p"], set_event("x", 1), id)
        plain = good.replace("-", "")
        for id in (
            "evt-1", "", plain, plain[:-1], f"{{{good}}}", f"urn:uuid:{good}", f" {good[1:]}", f"+{good[1:]}",
            good[:-1] + "g", good + "0", good + "\n", f"{plain[:4]}-{plain[4:]}", "\uff11" + good[1:],
        ):  # fmt: skip
            peer.send("submit_events", {"events": [item(["p"], set_event("x", 1), id)]})
            peer.expect_error("bad_request")
        assert len(peer.history(["p"])) == 4


# -- validation ----------------------------------------------------------------------------------------------


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
