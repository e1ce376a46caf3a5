"""One global order, and one committed_id for one id, whoever asks, how often, and after whatever happened."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.behaviour.server.harness import Peer, Server, item, new_id, running, set_event, tree_event
from tests.behaviour.server.pressure import passed_on, stopped
from tests.waiting import PATIENCE_S
from unisono.store.sqlite.files import LOG_FILE

WRITERS = 8
ID_MAX = 2**53 - 1


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of this module alone, whose whole log is known and whose processes may be stopped."""
    with running(tmp_path_factory.mktemp("busy") / "data", "--access-default", "allow") as started:
        yield started


def submit_text(peer: Peer, *items: tuple[str, str, str]) -> list[dict[str, Any]]:
    """Submit (id, partition, event as JSON text), spelled exactly so."""
    events = ",".join(
        f'{{"id":{json.dumps(id)},"partitions":[{json.dumps(part)}],"event":{text}}}'
        for id, part, text in items
    )
    peer.raw(json.dumps(peer.envelope("submit_events", "@")).replace('"@"', f'{{"events":[{events}]}}'))
    results: list[dict[str, Any]] = peer.expect("submit_events_result")["results"]
    return results


def told(result: dict[str, Any]) -> tuple[int, int]:
    assert result["status"] == "committed", result
    return result["committed_id"], result["status_updated_at"]


def refused(result: dict[str, Any], field: str) -> str:
    """It was rejected because of this field; gives the message."""
    assert result["status"] == "rejected", result
    assert result["reason"] == "validation_failed"
    (error,) = result["errors"]
    assert error["field"] == field
    message: str = error["message"]
    return message


# -- one order -----------------------------------------------------------------------------------------------


def write(server: Server, client_id: str, partitions: Sequence[str], requests: int) -> list[int]:
    """Pipelined batches of five; their committed_ids as told."""
    ids: list[int] = []
    with server.client(client_id) as peer:
        for number in range(requests):
            batch = [item(partitions, set_event("n", [number, n])) for n in range(5)]
            peer.send("submit_events", {"events": batch})
            if number >= 4:
                ids += [told(result)[0] for result in peer.expect("submit_events_result")["results"]]
        for _ in range(min(4, requests)):
            ids += [told(result)[0] for result in peer.expect("submit_events_result")["results"]]
    return ids


@pytest.mark.req("ORD-01", "ORD-02", "SUBMIT-03", "BCAST-03")
def test_under_concurrent_writers_ids_have_no_gap_and_appear_in_order(busy: Server, part: str) -> None:
    """Nobody sees N and later something smaller: neither who polls nor who listens."""
    parts = [f"{part}-{n}" for n in range(WRITERS)]
    done = threading.Event()

    def poll() -> list[int]:
        seen: list[int] = []
        cursor = first - 1
        with busy.client(f"{part}-poller") as peer:
            while True:
                last_round = done.is_set()
                page = peer.sync(parts, cursor)
                seen += [event["committed_id"] for event in page["events"]]
                cursor = page["next_since_committed_id"]
                if last_round and not page["has_more"]:
                    return seen

    def listen(peer: Peer, count: int) -> list[int]:
        return [peer.expect("event_broadcast")["committed_id"] for _ in range(count)]

    requests = 30
    count = WRITERS * requests * 5
    with busy.client(f"{part}-listener") as listener, ThreadPoolExecutor(WRITERS + 2) as pool:
        first = listener.subscribe(*parts)["sync_to_committed_id"] + 1
        polling, listening = pool.submit(poll), pool.submit(listen, listener, count)
        writing = [pool.submit(write, busy, f"{part}-{n}", [parts[n]], requests) for n in range(WRITERS)]
        results = [future.result() for future in writing]
        done.set()
        expected = list(range(first, first + count))
        assert sorted(id for ids in results for id in ids) == expected
        for ids in results:
            assert all(earlier < later for earlier, later in pairwise(ids))
        assert listening.result() == expected
        assert polling.result() == expected
        assert [event["committed_id"] for event in listener.history(parts)] == expected


@pytest.mark.req("ORD-01", "ORD-03", "ORD-04", "ORD-05", "DUR-02")
def test_ids_and_results_survive_a_restart_and_kill_9(tmp_path: Path, who: str) -> None:
    first, second, third = (item(["p"], tree_event(name)) for name in "ABC")
    with running(tmp_path / "data", "--access-default", "allow") as server:
        with server.client(who) as peer:
            (before,) = peer.submit(first)
        assert server.stop() == 0
        server.start()
        with server.client(f"{who}-other") as peer:
            again, new = peer.submit(first, second)
            assert told(again) == told(before)
            assert told(new)[0] == 2
            assert told(new)[1] >= told(before)[1]
            refused(peer.submit(first | {"event": tree_event("Z")})[0], "event")
        server.kill()
        server.start()
        with server.client(who) as peer:
            results = peer.submit(third, second, first)
            assert [told(result)[0] for result in results] == [3, 2, 1]
            assert told(results[1]) == told(new)
            assert told(results[2]) == told(before)
            refused(peer.submit(second | {"partitions": ["q"]})[0], "event")
            assert [event["id"] for event in peer.history(["p"])] == [
                one["id"] for one in (first, second, third)
            ]


def plant(server: Server, sql: str) -> None:
    """Change the log of a server that is not running."""
    connection = apsw.Connection(str(server.data / LOG_FILE))
    connection.execute(sql)
    connection.close()
    server.tampered = True


@pytest.mark.req("ORD-01")
def test_the_head_is_stored_and_ids_stay_below_2_to_the_53(tmp_path: Path, who: str) -> None:
    with running(tmp_path / "data", "--access-default", "allow") as server:
        with server.client(who) as peer:
            assert [peer.commit(["p"], set_event("n", n)) for n in range(3)] == [1, 2, 3]
        server.stop()
        plant(server, "DELETE FROM events; DELETE FROM event_partitions")
        server.start()
        with server.client(who) as peer:  # every row is gone, and still no id comes twice
            assert peer.commit(["p"], set_event("n", 3)) == 4
        server.stop()
        plant(
            server,
            f"DELETE FROM events; DELETE FROM event_partitions; UPDATE head SET committed_id = {ID_MAX - 1}",
        )
        server.start()
        with server.client(who) as peer:
            assert peer.commit(["p"], set_event("n", 4)) == ID_MAX
            assert peer.sync(["p"])["sync_to_committed_id"] == ID_MAX
            peer.send("submit_events", {"events": [item(["p"], set_event("n", 5))]})
            peer.expect_error("server_error")  # nothing is promised any more, and never an id beyond
            peer.expect_close(1011)


# -- the same id again ---------------------------------------------------------------------------------------


@pytest.mark.req("ORD-03")
def test_a_retry_gets_the_first_result_and_nobody_hears_of_it(server: Server, part: str) -> None:
    with (
        server.client(f"{part}-a") as origin,
        server.client(f"{part}-b") as other,
        server.client(f"{part}-c") as listener,
    ):
        listener.subscribe(part)
        sent = item([part], tree_event("A"))
        (first,) = origin.submit(sent)
        listener.expect("event_broadcast")
        for peer in (origin, other, origin):
            (again,) = peer.submit(sent)
            assert again == first
            peer.send("submit_event", sent)
            single = peer.expect("event_committed")
            assert told(first) == (single["committed_id"], single["status_updated_at"])
            assert single["client_id"] == f"{part}-a"
        beside, again, last = other.submit(item([part], tree_event("B")), sent, item([part], tree_event("C")))
        assert again == first
        assert told(last)[0] == told(beside)[0] + 1 == told(first)[0] + 2  # no id was used up
        assert [listener.expect("event_broadcast")["id"] for _ in range(2)] == [beside["id"], last["id"]]
        listener.expect_quiet()
        assert len(origin.history([part])) == 3


@pytest.mark.req("ORD-04", "ORD-06")
def test_the_same_id_with_another_payload_is_refused(server: Server, part: str) -> None:
    with server.client(f"{part}-a") as origin, server.client(f"{part}-b") as other:
        sent = item([part], set_event("title", "one"))
        (first,) = origin.submit(sent)
        changes = {
            "another value": {"event": set_event("title", "two")},
            "another type of value": {"event": set_event("title", ["one"])},
            "one field more": {"event": sent["event"] | {"more": None}},
            "another partition": {"partitions": [f"{part}-2"]},
            "a partition more": {"partitions": [part, f"{part}-2"]},
            "an event that is not valid at all": {"event": {"type": "no such thing"}},
        }
        for name, change in changes.items():
            for peer in (origin, other):
                (result,) = peer.submit(sent | change)
                message = refused(result, "event")
                assert "different payload" in message, name
                assert sent["id"] in message
                peer.send("submit_event", sent | change)
                assert peer.expect("event_rejected")["errors"] == result["errors"]
        assert origin.submit(sent) == [first]
        assert [event["event"] for event in origin.history([part, f"{part}-2"])] == [sent["event"]]


@pytest.mark.req("ORD-03", "ORD-05", "ORD-06")
def test_two_connections_race_the_same_ids(busy: Server, part: str) -> None:
    """Two clients send the same drafts at the same moment, again and again: each has one committed_id."""
    drafts = [item([part], tree_event(f"n{n}")) for n in range(120)]
    line = threading.Barrier(2)

    def race(client_id: str) -> list[tuple[int, int]]:
        results: list[tuple[int, int]] = []
        with busy.client(client_id) as peer:
            for start in range(0, len(drafts), 3):
                line.wait(PATIENCE_S)
                for draft in drafts[start : start + 3]:
                    peer.send("submit_events", {"events": [draft]})
                for _ in range(3):
                    (result,) = peer.expect("submit_events_result")["results"]
                    results.append(told(result))
        return results

    with ThreadPoolExecutor(2) as pool:
        racing = [pool.submit(race, f"{part}-{n}") for n in range(2)]
        first, second = (future.result() for future in racing)
    assert first == second
    assert len({committed_id for committed_id, _ in first}) == len(drafts)
    with busy.client(f"{part}-reader") as reader:
        assert len(reader.history([part])) == len(drafts)


@pytest.mark.req("ORD-03", "ORD-04", "ORD-05", "SUBMIT-02")
def test_the_same_ids_inside_one_group(busy: Server, part: str) -> None:
    """While the authority stands still three clients submit the same ids; it then takes all in one group."""
    authority = next(iter(busy.children()))
    drafts = [item([part], tree_event(f"n{n}")) for n in range(20)]
    other = [draft | {"event": tree_event("other")} for draft in drafts]
    with (
        busy.client(f"{part}-a") as first,
        busy.client(f"{part}-b") as second,
        busy.client(f"{part}-c") as third,
        busy.client(f"{part}-d") as listener,
    ):
        listener.subscribe(part)
        groups = busy.metric("unisono_group_events_count")
        with stopped(authority):
            for peer, batch in ((first, drafts), (second, drafts), (third, other)):
                peer.send("submit_events", {"events": batch})
                passed_on(peer)
        mine, same, conflicting = (
            peer.expect("submit_events_result")["results"] for peer in (first, second, third)
        )
        assert busy.metric("unisono_group_events_count") == groups + 1
        assert same == mine
        ids = [told(result)[0] for result in mine]
        assert ids == list(range(ids[0], ids[0] + len(drafts)))
        for result in conflicting:
            assert "different payload" in refused(result, "event")
        assert [listener.expect("event_broadcast")["committed_id"] for _ in ids] == ids
        listener.expect_quiet()


# -- what is equal -------------------------------------------------------------------------------------------


def value(text: str) -> str:
    """A `set` of this JSON text."""
    return f'{{"type":"set","payload":{{"target":"v","value":{text},"options":{{"replace":true}}}}}}'


EQUAL = {
    "one": ["1", "1.0", "1e0", "1E0", "10e-1", "0.1e1", "1.000", "100e-2"],
    "zero": ["0", "0.0", "-0", "-0.0", "0e5"],
    "large": ["1e21", "1000000000000000000000", "1000000000000000000000.0", "10e20"],
    "the largest exact": ["9007199254740992", "9007199254740992.0", "9.007199254740992e15"],
    "a fraction": ["0.1", "1e-1", "0.10", "0.1000000000000000055511151231257827021181583404541015625"],
    "key order": ['{"b":1,"a":[1,2]}', '{"a":[1,2],"b":1}', '{ "a" : [ 1 , 2.0 ] ,\t"b" : 1e0 }'],
    "key order beyond the BMP": ['{"\uff5e":1,"\U0001f600":2}', '{"\U0001f600":2,"\uff5e":1}'],
    "whitespace": ["[1,2]", " [ 1,\n2 ]\r\n"],
    "escapes": [
        '"\u00e9/\U0001f600\\n"',
        '"\\u00e9\\/\\ud83d\\ude00\\u000a"',
        '"\\u00E9/\\uD83D\\uDE00\\u000A"',
    ],
    "escaped keys": ['{"a":1}', '{"\\u0061":1}'],
}
DIFFERENT = {
    "an integer and its text": ["1", '"1"'],
    "null and nothing": ['{"a":null}', "{}"],
    "neighbouring doubles": ["0.1", "0.10000000000000002"],
    "two normal forms": ['"\u00e9"', '"e\u0301"'],
    "array order": ["[1,2]", "[2,1]"],
    "true and one": ["true", "1"],
}


@pytest.mark.req("ORD-06", "ORD-07")
@pytest.mark.parametrize("spellings", EQUAL.values(), ids=EQUAL)
def test_spellings_of_one_payload_are_equal(peer: Peer, part: str, spellings: list[str]) -> None:
    id = new_id()
    results = [submit_text(peer, (id, part, value(text)))[0] for text in spellings]
    assert {told(result) for result in results} == {told(results[0])}
    assert len(peer.history([part])) == 1


@pytest.mark.req("ORD-04", "ORD-06")
@pytest.mark.parametrize("payloads", DIFFERENT.values(), ids=DIFFERENT)
def test_different_payloads_are_different(peer: Peer, part: str, payloads: list[str]) -> None:
    for first, second in (payloads, payloads[::-1]):
        id = new_id()
        told(submit_text(peer, (id, part, value(first)))[0])
        refused(submit_text(peer, (id, part, value(second)))[0], "event")


@pytest.mark.req("ORD-06")
def test_the_whole_event_is_compared_and_nothing_around_it(server: Server, part: str) -> None:
    with server.client(f"{part}-a") as origin, server.client(f"{part}-b") as other:
        id = new_id()
        spelled = '{"payload":{"options":{"replace":true},"value":1,"target":"v"},"type":"set"}'
        (first,) = submit_text(origin, (id, part, value("1")))
        (again,) = submit_text(other, (id, part, spelled))
        assert told(again) == told(first)
        same = item([part], json.loads(value("1")), id, client_id=f"{part}-b", unknown=[1])
        assert other.submit(same) == [again]


# -- what has no canonical form ------------------------------------------------------------------------------

UNREPRESENTABLE = {
    "2^53 + 1": ("9007199254740993", "value"),
    "-(2^53 + 1)": ("-9007199254740993", "value"),
    "too many digits": ("0.1234567890123456789", "value"),
    "too large": ("1e400", "value"),
    "too large and negative": ("-1e400", "value"),
    "too small": ("1e-400", "value"),
    "deep inside": ('{"a":[0,{"b":123456789012345678901}]}', "value.a.1.b"),
    "a duplicate key": ('{"a":1,"a":2}', "value.a"),
    "a duplicate key with one value": ('{"a":1,"a":1}', "value.a"),
    "a duplicate key in another spelling": ('{"a":1,"\\u0061":2}', "value.a"),
    "a lone high surrogate": ('"\\ud800"', "value"),
    "a lone low surrogate": ('"x\\udc00y"', "value"),
    "surrogates the wrong way round": ('"\\ude00\\ud83d"', "value"),
}


@pytest.mark.req("ORD-07", "SUBMIT-03")
@pytest.mark.parametrize(("text", "field"), UNREPRESENTABLE.values(), ids=UNREPRESENTABLE)
def test_json_without_a_canonical_form_rejects_its_item_only(
    peer: Peer, part: str, text: str, field: str
) -> None:
    id = new_id()
    before, broken, after = submit_text(
        peer, (new_id(), part, value("1")), (id, part, value(text)), (new_id(), part, value("2"))
    )
    assert refused(broken, f"event.payload.{field}")
    assert told(after)[0] == told(before)[0] + 1
    peer.raw(
        json.dumps(peer.envelope("submit_event", "@")).replace(
            '"@"', f'{{"id":"{id}","partitions":["{part}"],"event":{value(text)}}}'
        )
    )
    assert peer.expect("event_rejected")["errors"] == broken["errors"]
    assert told(submit_text(peer, (id, part, value("3")))[0])[0] == told(after)[0] + 1  # the id is free
    assert [event["event"]["payload"]["value"] for event in peer.history([part])] == [1, 2, 3]


@pytest.mark.req("ORD-07")
def test_duplicate_keys_of_the_event_itself_and_surrogates_in_keys(peer: Peer, part: str) -> None:
    twice = '{"type":"set","type":"unset","payload":{"target":"v"}}'
    key = '{"type":"set","payload":{"target":"v","value":1},"\\ud800":1}'
    good, first, second = submit_text(
        peer, (new_id(), part, value("1")), (new_id(), part, twice), (new_id(), part, key)
    )
    assert told(good)
    assert "twice" in refused(first, "event.type")
    assert "surrogate" in refused(second, "event")
    assert len(peer.history([part])) == 1
