"""Partition sets on the wire: limits at their exact borders, one normal form, and the legacy field."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.behaviour.server.harness import Peer, Server, item, new_id, running, set_event

EVENT = set_event("title", "Hello")

# What is sent, and how many bytes it has after NFC; the raw length differs in both directions.
FITTING = {
    "ascii": ("x" * 128, 128),
    "two-byte letters": ("\u00e9" * 64, 128),
    "shorter under NFC": ("e\u0301" * 64, 128),
    "longer under NFC": ("\u0958" * 21 + "xx", 128),
    "beyond the BMP": ("\U0001f600" * 32, 128),
}
TOO_LONG = {
    "ascii": ("x" * 129, 129),
    "two-byte letters": ("\u00e9" * 64 + "x", 129),
    "shorter under NFC": ("e\u0301" * 64 + "x", 129),
    "longer under NFC": ("\u0958" * 22, 132),
    "beyond the BMP": ("\U0001f600" * 32 + "x", 129),
}
WRONG_SHAPES: dict[str, dict[str, Any]] = {
    "missing": {},
    "a string": {"partitions": "p"},
    "null": {"partitions": None},
    "an object": {"partitions": {"p": 1}},
    "a number in it": {"partitions": ["p", 7]},
    "null in it": {"partitions": [None]},
    "an array in it": {"partitions": [["p"]]},
}


@pytest.fixture(scope="module")
def lenient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The operator has turned the shim for `partition` on."""
    data = tmp_path_factory.mktemp("lenient") / "data"
    with running(data, "--access-default", "allow", "--legacy-partition") as started:
        yield started


@pytest.fixture
def old_client(lenient: Server, who: str) -> Iterator[Peer]:
    with lenient.client(who) as connected:
        yield connected


def stays_open(peer: Peer) -> None:
    peer.send("heartbeat", {})
    peer.expect("heartbeat_ack")


def refused(result: dict[str, Any], field: str) -> None:
    assert result["status"] == "rejected", result
    assert result["reason"] == "validation_failed"
    assert [error["field"] for error in result["errors"]] == [field]
    assert "committed_id" not in result


# -- limits --------------------------------------------------------------------------------------------------


@pytest.mark.req("PART-01", "PART-04")
def test_64_entries_are_taken_and_65_are_not_in_submit(peer: Peer, part: str) -> None:
    names = [f"{part}-{n:02d}" for n in range(65)]
    taken, refused_one, beside = peer.submit(item(names[:64], EVENT), item(names, EVENT), item([part], EVENT))
    assert taken["status"] == "committed"
    refused(refused_one, "partitions")
    assert beside["status"] == "committed"
    (event,) = peer.history([names[63]])
    assert event["partitions"] == names[:64]
    assert peer.history([names[64]]) == []


@pytest.mark.req("PART-01", "PART-02")
def test_entries_are_counted_as_sent_before_duplicates_go(peer: Peer, part: str) -> None:
    taken, refused_one = peer.submit(item([part] * 64, EVENT), item([part] * 65, EVENT))
    assert taken["status"] == "committed"
    refused(refused_one, "partitions")
    (event,) = peer.history([part])
    assert event["partitions"] == [part]
    assert peer.sync([part] * 1000)["partitions"] == [part]
    peer.send("sync", {"partitions": [part] * 1001, "since_committed_id": 0})
    peer.expect_error("validation_failed")


@pytest.mark.req("PART-01", "PART-04")
@pytest.mark.parametrize(
    ("field", "told"),
    [("partitions", "partitions"), ("subscription_partitions", "effective_subscriptions")],
)
def test_1000_entries_are_taken_and_1001_are_not_in_sync(
    peer: Peer, part: str, field: str, told: str
) -> None:
    peer.subscribe(part)
    names = [f"{part}-{n:04d}" for n in range(1001)]
    request = {"partitions": [part], "since_committed_id": 0}
    peer.send("sync", request | {field: names})
    error = peer.expect_error("validation_failed")
    assert error["details"]["errors"][0]["field"] == field
    assert peer.sync([part])["effective_subscriptions"] == [part]
    peer.send("sync", request | {field: names[:1000]})
    assert peer.expect("sync_response")[told] == names[:1000]


@pytest.mark.req("PART-01", "PART-02")
@pytest.mark.parametrize(("name", "size"), FITTING.values(), ids=FITTING)
def test_a_name_of_128_bytes_after_nfc_is_taken(peer: Peer, part: str, name: str, size: int) -> None:
    committed_id = peer.commit([name, part], EVENT)
    page = peer.sync([name], committed_id - 1, subscription_partitions=[name])
    (normal,) = page["partitions"]
    assert len(normal.encode()) == size
    assert page["effective_subscriptions"] == [normal]
    assert page["events"][0]["partitions"] == sorted([normal, part], key=str.encode)


@pytest.mark.req("PART-01", "PART-04")
@pytest.mark.parametrize(("name", "size"), TOO_LONG.values(), ids=TOO_LONG)
def test_a_longer_name_is_refused(peer: Peer, part: str, name: str, size: int) -> None:
    (result,) = peer.submit(item([part, name], EVENT))
    refused(result, "partitions.1")
    assert f"{size} bytes" in result["errors"][0]["message"]
    assert peer.history([part]) == []
    for field in ("partitions", "subscription_partitions"):
        peer.send("sync", {"partitions": [part], "since_committed_id": 0} | {field: [name]})
        error = peer.expect_error("validation_failed")
        assert error["details"]["errors"][0]["field"] == f"{field}.0"
    stays_open(peer)


@pytest.mark.req("PART-01", "PART-04")
def test_no_partition_and_an_empty_name_are_refused(peer: Peer, part: str) -> None:
    none, empty = peer.submit(item([], EVENT), item([part, ""], EVENT))
    refused(none, "partitions")
    refused(empty, "partitions.1")
    for names in ([], [""]):
        peer.send("sync", {"partitions": names, "since_committed_id": 0})
        peer.expect_error("validation_failed")
    peer.send("sync", {"partitions": [part], "subscription_partitions": [part, ""], "since_committed_id": 0})
    peer.expect_error("validation_failed")
    assert peer.sync([part])["effective_subscriptions"] == []


# -- normal form ---------------------------------------------------------------------------------------------


@pytest.mark.req("PART-02", "PART-03")
def test_sorted_by_utf8_bytes_and_without_duplicates(server: Server, part: str) -> None:
    # UTF-16 would put U+10000 before U+FF5E; UTF-8 does not. The two spellings of é are one name.
    sent = [f"{part}{end}" for end in ("\U00010000", "b", "\uff5e", "e\u0301", "\u00e9", "a", "b", "B")]
    normal = [f"{part}{end}" for end in ("B", "a", "b", "\u00e9", "\uff5e", "\U00010000")]
    assert normal == sorted(normal, key=str.encode)
    with server.client(f"{part}-1") as origin, server.client(f"{part}-2") as listener:
        page = listener.sync(sent, subscription_partitions=sent)
        assert page["partitions"] == normal
        assert page["effective_subscriptions"] == normal
        origin.send("submit_event", item(sent, EVENT))
        assert origin.expect("event_committed")["partitions"] == normal
        assert listener.expect("event_broadcast")["partitions"] == normal
        for name in sent:
            (event,) = listener.history([name])
            assert event["partitions"] == normal


@pytest.mark.req("PART-02")
def test_nothing_is_trimmed_or_folded(peer: Peer, part: str) -> None:
    names = [
        f" {part}",
        f"{part}",
        f"{part} ",
        f"{part.upper()}",
        f"{part}\n",
        f"{part}\u00a0",
        f"{part}\u200b",
    ]
    for name in names:
        peer.commit([name], set_event("name", name))
    for name in names:
        (event,) = peer.history([name])
        assert event["partitions"] == [name]
        assert event["event"]["payload"]["value"] == name
    assert peer.sync(names)["partitions"] == sorted(names, key=str.encode)


@pytest.mark.req("PART-03", "ORD-06")
def test_the_normal_form_is_what_is_hashed_and_compared(peer: Peer, part: str) -> None:
    id, accented = new_id(), f"{part}-caf\u00e9"
    committed_id = peer.commit([part, accented], EVENT, id)
    for spelling in ([accented, part], [part, f"{part}-cafe\u0301"], [part, accented, part, accented]):
        assert peer.commit(spelling, EVENT, id) == committed_id
    for other in ([part], [accented], [part, accented, f"{part}-more"], [part, accented.upper()]):
        (result,) = peer.submit(item(other, EVENT, id))
        refused(result, "event")
    assert len(peer.history([part])) == 1


@pytest.mark.req("PART-03", "BCAST-01")
def test_a_subscription_in_another_spelling_is_the_same(server: Server, part: str) -> None:
    with server.client(f"{part}-1") as origin, server.client(f"{part}-2") as listener:
        listener.subscribe(f"{part}-A\u030a")
        committed_id = origin.commit([f"{part}-\u212b"], EVENT)
        assert listener.expect("event_broadcast")["committed_id"] == committed_id
        origin.commit([f"{part}-\u00e5"], EVENT)  # the small letter is another name
        listener.expect_quiet()


# -- wrong shapes --------------------------------------------------------------------------------------------


@pytest.mark.req("PART-04", "SUBMIT-01")
@pytest.mark.parametrize("wrong", WRONG_SHAPES.values(), ids=WRONG_SHAPES)
def test_a_wrong_type_or_nothing_is_bad_request(peer: Peer, part: str, wrong: dict[str, Any]) -> None:
    broken = {"id": new_id(), "event": EVENT} | wrong
    peer.send("submit_events", {"events": [item([part], EVENT), broken]})
    peer.expect_error("bad_request")
    peer.send("submit_event", broken)
    peer.expect_error("bad_request")
    peer.send("sync", {"since_committed_id": 0} | wrong)
    peer.expect_error("bad_request")
    assert peer.history([part]) == []


@pytest.mark.req("PART-04")
@pytest.mark.parametrize("wrong", ["p", None, {}, [1], [None]])
def test_a_wrongly_typed_subscription_is_bad_request(peer: Peer, part: str, wrong: Any) -> None:
    peer.subscribe(part)
    peer.send("sync", {"partitions": [part], "since_committed_id": 0, "subscription_partitions": wrong})
    peer.expect_error("bad_request")
    assert peer.sync([part])["effective_subscriptions"] == [part]


# -- the legacy field ----------------------------------------------------------------------------------------


@pytest.mark.req("PART-05")
def test_the_legacy_field_beside_an_equivalent_set_is_taken(peer: Peer, part: str) -> None:
    accented = f"{part}-\u00e9"
    first, second = peer.submit(
        item([part, part], EVENT, partition=part), item([accented], EVENT, partition=f"{part}-e\u0301")
    )
    assert first["status"] == second["status"] == "committed"
    peer.send("sync", {"partitions": [part], "partition": part, "since_committed_id": 0})
    assert len(peer.expect("sync_response")["events"]) == 1


@pytest.mark.req("PART-05")
@pytest.mark.parametrize("shim", [False, True])
def test_the_legacy_field_beside_another_set_is_bad_request(
    server: Server, lenient: Server, who: str, part: str, shim: bool
) -> None:
    with (lenient if shim else server).client(who) as peer:
        for names in ([f"{part}-other"], [part, f"{part}-other"], [part.upper()], []):
            peer.send("submit_events", {"events": [item([part], EVENT), item(names, EVENT, partition=part)]})
            peer.expect_error("bad_request")
            peer.send("submit_event", item(names, EVENT, partition=part))
            peer.expect_error("bad_request")
            peer.send("sync", {"partitions": names, "partition": part, "since_committed_id": 0})
            peer.expect_error("bad_request")
        assert peer.history([part]) == []


@pytest.mark.req("PART-05")
def test_the_legacy_field_alone_is_bad_request(peer: Peer, part: str) -> None:
    old = {"id": new_id(), "partition": part, "event": EVENT}
    peer.send("submit_events", {"events": [item([part], EVENT), old]})
    peer.expect_error("bad_request")
    peer.send("submit_event", old)
    peer.expect_error("bad_request")
    peer.send("sync", {"partition": part, "since_committed_id": 0})
    peer.expect_error("bad_request")
    assert peer.history([part]) == []


@pytest.mark.req("PART-05")
def test_the_legacy_field_alone_is_taken_when_the_operator_says_so(old_client: Peer, part: str) -> None:
    id, decomposed = new_id(), f"{part}-e\u0301"
    old_client.send("submit_event", {"id": id, "partition": decomposed, "event": EVENT})
    committed = old_client.expect("event_committed")
    assert committed["partitions"] == [f"{part}-\u00e9"]
    assert "partition" not in committed
    old_client.send("sync", {"partition": decomposed, "since_committed_id": 0})
    assert old_client.expect("sync_response")["events"] == [committed]
    assert old_client.commit([decomposed], EVENT, id) == committed["committed_id"]
    (long,) = old_client.submit({"id": new_id(), "partition": "x" * 129, "event": EVENT})
    refused(long, "partitions.0")


@pytest.mark.req("PART-04", "PART-05")
@pytest.mark.parametrize("wrong", [None, 7, ["p"]])
def test_a_wrongly_typed_legacy_field_is_bad_request(old_client: Peer, part: str, wrong: Any) -> None:
    old_client.send("submit_event", {"id": new_id(), "partition": wrong, "event": EVENT})
    old_client.expect_error("bad_request")
    old_client.send("sync", {"partition": wrong, "since_committed_id": 0})
    old_client.expect_error("bad_request")


@pytest.mark.req("PART-02", "PART-05")
def test_a_lone_surrogate_is_no_partition_name(old_client: Peer, part: str) -> None:
    """It must not be stored as some other character, whichever field it comes in."""
    for named in ({"partitions": [part, "\ud800"]}, {"partition": "\ud800"}):
        old_client.send("submit_event", {"id": new_id(), "event": EVENT} | named)
        old_client.expect_error("bad_request")
        old_client.send("sync", {"since_committed_id": 0} | named)
        old_client.expect_error("bad_request")
    assert old_client.history([part]) == []


def keys_of(value: Any) -> set[str]:
    """Every key at any depth."""
    if isinstance(value, dict):
        return set(value).union(*(keys_of(part) for part in value.values()))
    if isinstance(value, list):
        return set().union(*(keys_of(part) for part in value))
    return set()


@pytest.mark.req("PART-05")
def test_the_legacy_field_is_never_emitted(lenient: Server, part: str) -> None:
    with lenient.client(f"{part}-1") as origin, lenient.client(f"{part}-2") as listener:
        listener.subscribe(part)
        old = {"id": new_id(), "partition": part, "event": EVENT}
        origin.send("submit_event", old)
        origin.send("submit_events", {"events": [old | {"event": set_event("title", 2)}]})
        origin.send("submit_event", old | {"event": {"type": "unknown", "payload": {}}})
        origin.send("sync", {"partition": part, "since_committed_id": 0})
        origin.send("sync", {"partition": "", "since_committed_id": 0})
        told = [origin.receive() for _ in range(5)] + [listener.receive()]
    assert {message["type"] for message in told} == {
        "event_committed", "submit_events_result", "event_rejected", "sync_response", "error", "event_broadcast",
    }  # fmt: skip
    for message in told:
        assert "partition" not in keys_of(message["payload"]), message


# -- names that are far too long -----------------------------------------------------------------------------

MARKS = "\u0315\u0300" * 75_000
"""300 KB as sent in JSON that is not escaped: the library would normalise it for most of a minute."""


@pytest.mark.req("PART-01", "PART-04", "LIM-07")
@pytest.mark.parametrize(
    "named",
    [
        {"partitions": [MARKS]},
        {"partitions": ["p", MARKS]},
        {"partitions": ["p"], "subscription_partitions": ["p", MARKS]},
        {"partition": MARKS},
        {"partition": MARKS, "partitions": ["p", MARKS]},
        {"partition": MARKS, "partitions": [MARKS]},
        {"partition": "p", "partitions": [MARKS[1:]]},
    ],
    ids=["alone", "second", "subscription", "legacy", "beside others", "twice", "beside another"],
)
def test_a_huge_name_is_refused_at_once_and_not_sent_back(
    lenient: Server, old_client: Peer, who: str, named: dict[str, Any]
) -> None:
    with lenient.client(f"{who}-b") as other:
        started = time.monotonic()
        old_client.raw(_unescaped(old_client.envelope("sync", {"since_committed_id": 0, **named})))
        submitted = {"id": new_id(), "event": EVENT, **named}
        submitted.pop("subscription_partitions", None)
        old_client.raw(_unescaped(old_client.envelope("submit_event", submitted)))
        stays_open(other)
        answers = [old_client.receive(), old_client.receive()]
        assert time.monotonic() - started < 10  # all of it takes milliseconds; one name would take far longer
    for answer in answers:
        if "subscription_partitions" not in named or answer["type"] == "error":
            assert answer["payload"].get("code", "validation_failed") in ("validation_failed", "bad_request")
            assert answer["type"] in ("error", "event_rejected")
        assert len(json.dumps(answer)) < 1000
    stays_open(old_client)


@pytest.mark.req("LIM-07", "PART-01")
def test_a_message_full_of_names_of_marks_keeps_nobody_waiting(server: Server, peer: Peer, who: str) -> None:
    """Names as long as they may be sent, as many as a message and a request have room for."""
    name = "\u0315\u0300" * 120
    items = [{"id": new_id(), "event": EVENT, "partitions": [name] * 20} for _ in range(100)]
    with server.client(f"{who}-b") as other:
        peer.raw(_unescaped(peer.envelope("submit_events", {"events": items})))
        started = time.monotonic()
        stays_open(other)
        waited = time.monotonic() - started
    results = peer.expect("submit_events_result")["results"]
    assert {result["reason"] for result in results} == {"validation_failed"}
    assert waited < 2  # a tenth of it on a machine with nothing else to do


def _unescaped(message: dict[str, Any]) -> str:
    return json.dumps(message, ensure_ascii=False)
