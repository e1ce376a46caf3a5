"""Submitting: the request as a whole, its items one by one, and the answer to each generation of clients."""

from __future__ import annotations

import json
import time
import uuid
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.server.harness import Peer, Server, item, running, set_event, tree_event
from tests.behaviour.server.submitting import event, fields
from unisono.store.sqlite.log import SqliteReader

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
