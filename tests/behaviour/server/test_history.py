"""History backwards: the newest events of a partition, page by page, down to its first one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.server.harness import Peer, Server, new_id, running, set_event, tree_event
from tests.commands import unisono
from unisono.front.history_requests import MAX_REQUEST_ID, MAX_WAITING

Event = dict[str, Any]


def reading(server: Server, client_id: str, *extensions: str, **claims: Any) -> Peer:
    """A client with the extension."""
    peer = server.peer()
    peer.connect(
        client_id,
        server.token(client_id, **claims),
        supported_profiles=["compatibility"],
        extensions=["history", *extensions],
    )
    return peer


def ask(peer: Peer, partition: str, **more: Any) -> dict[str, Any]:
    """One page."""
    request_id = new_id("h")
    peer.send("history", {"request_id": request_id, "partition": partition, **more})
    result = peer.expect("history_result")
    assert result["request_id"] == request_id
    return result


def walk(peer: Peer, partition: str, **more: Any) -> list[Event]:
    """Everything, newest first."""
    events: list[Event] = []
    before: int | None = None
    while True:
        page = ask(peer, partition, **more, **({} if before is None else {"before": before}))
        events += page["events"]
        before = page["next_before"]
        if before is None:
            return events
        assert page["events"][-1]["committed_id"] == before


def check_pages(writer_node: Server, reader_node: Server, part: str) -> None:
    """Pages are the sync history, the other way round, whatever their size."""
    other = f"{part}-other"
    with writer_node.client(f"{part}-w") as writer, reading(reader_node, f"{part}-r") as peer:
        assert ask(peer, part)["events"] == []
        for number in range(30):
            writer.commit([part] if number % 3 else [part, other], set_event("k", number))
            writer.commit([other], set_event("k", number))
        forward = peer.history([part])
        assert len(forward) == 30
        for limit in (1, 7, 30, 1000):
            assert walk(peer, part, limit=limit) == forward[::-1]
        middle = forward[12]["committed_id"]
        page = ask(peer, part, before=middle, limit=5)
        assert page["events"] == forward[7:12][::-1]
        assert (page["partition"], page["next_before"]) == (part, forward[7]["committed_id"])
        assert ask(peer, part, before=10**15)["events"] == forward[::-1]
        assert ask(peer, part, before=forward[0]["committed_id"]) | {"request_id": ""} == {
            "request_id": "",
            "partition": part,
            "events": [],
            "next_before": None,
        }
        assert ask(peer, f"{part}-never")["events"] == []


@pytest.mark.req("EXT-20", "EXT-21")
def test_pages_are_the_history_backwards(server: Server, part: str) -> None:
    check_pages(server, server, part)


@pytest.mark.req("EXT-20")
def test_what_was_answered_before_is_in_the_next_page(two_fronts: Server, part: str) -> None:
    with two_fronts.client(f"{part}-w") as writer, reading(two_fronts, f"{part}-r") as peer:
        for number in range(20):
            committed_id = writer.commit([part], set_event("k", number))
            (event,) = ask(peer, part, limit=1)["events"]
            assert event["committed_id"] == committed_id


@pytest.mark.req("EXT-20", "EXT-03")
def test_authors_come_with_identity(server: Server, part: str) -> None:
    with reading(server, f"{part}-a", user_id="ann") as ann:
        ann.commit([part], set_event("k", 1))
        (event,) = ask(ann, part)["events"]
        assert "user_id" not in event
    with reading(server, f"{part}-b", "identity") as ben:
        assert ask(ben, part)["events"] == [event | {"user_id": "ann"}]


@pytest.mark.req("EXT-02", "ENV-04")
def test_without_the_extension_history_is_unknown(server: Server, part: str) -> None:
    with server.client(f"{part}-a") as plain:
        plain.send("history", {"request_id": "1", "partition": part})
        assert plain.expect_error("bad_request")["message"] == "unknown message type 'history'"


@pytest.mark.req("EXT-21")
def test_a_page_is_bounded_in_events_and_bytes(tmp_path: Path) -> None:
    options = ("--sync-limit-max", "60", "--max-sync-page-bytes", "65536", "--model", "open")
    with running(tmp_path, *options, "--access-default", "allow") as server, reading(server, "r") as peer:
        for number in range(70):
            peer.commit(["small"], set_event("k", number))
        for number in range(9):
            peer.commit(["large"], set_event("k", f"{number}" * 20_000))
        assert len(ask(peer, "small")["events"]) == 50
        assert len(ask(peer, "small", limit=1000)["events"]) == 60
        assert len(ask(peer, "large")["events"]) == 3
        assert walk(peer, "large") == peer.history(["large"])[::-1]
        peer.commit(["large"], set_event("k", "x" * 100_000))
        assert len(ask(peer, "large")["events"]) == 1


@pytest.mark.req("EXT-23")
@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ({"before": 0}, "bad_request"),
        ({"before": -3}, "bad_request"),
        ({"limit": 0}, "bad_request"),
        ({"partition": ""}, "validation_failed"),
        ({"partition": "x" * 129}, "validation_failed"),
    ],
)
def test_a_refused_request_is_answered_by_its_own_id(
    server: Server, who: str, payload: dict[str, Any], code: str
) -> None:
    with reading(server, who) as peer:
        result = ask(peer, **{"partition": "p", **payload})
        assert result["error"]["code"] == code
        assert "events" not in result
        assert ask(peer, f"{who}-p")["events"] == []  # the connection goes on


@pytest.mark.req("EXT-23")
@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"partition": "p"},
        {"request_id": "", "partition": "p"},
        {"request_id": "x" * (MAX_REQUEST_ID + 1), "partition": "p"},
        {"request_id": 1, "partition": "p"},
        {"request_id": "1", "partition": "p", "limit": 1.5},
    ],
)
def test_a_request_that_cannot_be_answered_is_a_bad_request(
    server: Server, who: str, payload: dict[str, Any]
) -> None:
    with reading(server, who) as peer:
        peer.send("history", payload)
        peer.expect_error("bad_request")


@pytest.mark.req("EXT-23")
def test_only_so_many_wait(server: Server, part: str) -> None:
    """Sent in one go: whatever the server cannot take is refused by its id, and nothing is answered twice."""
    with reading(server, f"{part}-a") as peer:
        for number in range(20):
            peer.commit([part], set_event("k", number))
        ids = [f"r{number}" for number in range(200)]
        for request_id in ids:
            peer.send("history", {"request_id": request_id, "partition": part})
        results = [peer.expect("history_result") for _ in ids]
        assert sorted(result["request_id"] for result in results) == sorted(ids)
        refused = [result["error"]["code"] for result in results if "error" in result]
        assert set(refused) <= {"rate_limited"}
        assert len(results) - len(refused) > MAX_WAITING
        assert all(len(result["events"]) == 20 for result in results if "error" not in result)
        assert len(ask(peer, part)["events"]) == 20


@pytest.mark.req("EXT-23", "AUTHZ-09")
def test_who_may_not_read_gets_none(tmp_path: Path, part: str) -> None:
    acl = tmp_path / "acl.json"

    def write(**clients: dict[str, list[str]]) -> None:
        acl.write_text(json.dumps({"clients": clients}))
        if (tmp_path / "data").exists():
            done = unisono("access", "reload", "--data", str(tmp_path / "data"))
            assert done.exit_code == 0, done.output

    write(ann={"partitions": ["p"]}, ben={"readable_partitions": ["p"]})
    with (
        running(tmp_path / "data", "--model", "open", "--acl", str(acl)) as server,
        reading(server, "ann") as ann,
        reading(server, "ben") as ben,
    ):
        ann.commit(["p"], tree_event("x"))
        assert len(ask(ben, "p")["events"]) == 1
        error = ask(ben, "q")["error"]
        assert (error["code"], error["details"]) == ("forbidden", {"partitions": ["q"]})
        write(ann={"partitions": ["p"]})
        assert ask(ben, "p")["error"]["code"] == "forbidden"
        ben.expect_quiet()
        assert len(ask(ann, "p")["events"]) == 1
