"""Presence: who is in a partition now. Never stored, last value only, gone with the connection."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.behaviour.server.harness import Closed, Peer, Server, running, set_event
from tests.waiting import PATIENCE_S, in_a_window, until
from unisono.front.presence import MAX_OWN_PARTITIONS
from unisono.store.sqlite.reader import SqliteReader


def here(
    server: Server, client_id: str, *partitions: str, token: str = "", peer: Peer | None = None, **more: Any
) -> Peer:
    """A client with the extension, subscribed to these partitions."""
    peer = peer or server.peer()
    more = {"supported_profiles": ["compatibility"], "extensions": ["presence"], **more}
    peer.connect(client_id, token or server.token(client_id, user_id=f"u-{client_id}"), **more)
    if partitions:
        peer.sync(partitions, subscription_partitions=list(partitions))
    return peer


def say(peer: Peer, partition: str, value: Any, **more: Any) -> None:
    peer.send("presence", {"partition": partition, "value": value, **more})


def seen(peer: Peer, state: dict[str, Any], until: Any, partition: str | None = None) -> dict[str, Any]:
    """Take updates into `state` until it is as wanted; the last update."""
    end = time.monotonic() + PATIENCE_S
    while True:
        update = peer.expect("presence_update")
        assert partition in (None, update["partition"])
        if update["complete"]:
            state.clear()
        state.update({each["client_id"]: each["value"] for each in update["present"]})
        for gone in update["gone"]:
            state.pop(gone, None)
        if until(state):
            return update
        assert time.monotonic() < end, state


@pytest.fixture(params=["one front", "two fronts"])
def node(request: pytest.FixtureRequest, server: Server, two_fronts: Server) -> Server:
    return server if request.param == "one front" else two_fronts


@pytest.mark.req("EXT-05", "EXT-06", "EXT-09")
def test_subscribers_see_the_last_value_of_each(node: Server, part: str) -> None:
    a, b = f"{part}-a", f"{part}-b"
    with here(node, a, part) as ann, here(node, b, part) as ben:
        say(ann, part, {"cursor": 1})
        say(ann, part, {"cursor": 2})
        state: dict[str, Any] = {}
        update = seen(ben, state, lambda now: now == {a: {"cursor": 2}}, part)
        assert update["present"] == [{"client_id": a, "user_id": f"u-{a}", "value": {"cursor": 2}}]
        own: dict[str, Any] = {}
        seen(ann, own, lambda now: now == {a: {"cursor": 2}})  # oneself, too
        say(ben, part, "x")
        seen(ben, state, lambda now: now == {a: {"cursor": 2}, b: "x"})
        seen(ann, own, lambda now: now == state)
        say(ann, part, None)
        assert seen(ben, state, lambda now: now == {b: "x"})["gone"] == [a]
        # A third gets everything at once.
        with here(node, f"{part}-c", part) as cat:
            update = cat.expect("presence_update")
            assert (update["complete"], update["gone"]) == (True, [])
            assert [each["client_id"] for each in update["present"]] == [b]
        ann.send("disconnect", {})
    with node.client(a) as plain:
        assert plain.history([part]) == []  # never in the log


@pytest.mark.req("EXT-09", "EXT-02")
def test_only_those_who_ask_are_told_limits(server: Server, who: str) -> None:
    with server.peer() as peer:
        told = peer.connect(who, server.token(who), extensions=["presence"])["limits"]
        assert told["max_presence_bytes"] == 1024
        assert (told["presence_per_s"], told["presence_ttl_ms"]) == (20.0, 30_000)
    with server.peer() as peer:
        plain = peer.connect(who, server.token(who))["limits"]
        assert not [name for name in plain if "presence" in name]


@pytest.mark.req("EXT-02", "ENV-04")
@pytest.mark.parametrize("payload", [{"partition": "p", "value": 1}, {}, {"partition": 7}])
def test_without_the_extension_presence_is_unknown(
    server: Server, part: str, payload: dict[str, Any]
) -> None:
    with server.client(f"{part}-a") as plain, here(server, f"{part}-b", part) as other:
        plain.subscribe(part)
        plain.send("presence", payload)
        assert plain.expect_error("bad_request")["message"] == "unknown message type 'presence'"
        say(other, part, 1)
        other.expect("presence_update")
        plain.expect_quiet()
    with server.peer() as peer:
        peer.send("presence", payload)
        peer.expect_error("bad_request")


@pytest.mark.req("EXT-06")
@pytest.mark.parametrize("end", ["close", "disconnect", "cut"])
def test_it_is_gone_with_the_connection(node: Server, part: str, end: str) -> None:
    a = f"{part}-a"
    with here(node, f"{part}-b", part) as ben:
        ann = here(node, a)
        say(ann, part, 1)
        state: dict[str, Any] = {}
        seen(ben, state, lambda now: now == {a: 1})
        if end == "disconnect":
            ann.send("disconnect", {})
        elif end == "close":
            ann.close()
        else:
            ann.socket.socket.close()
        seen(ben, state, lambda now: now == {})
        ann.close()


@pytest.mark.req("EXT-06", "CONN-05")
def test_a_takeover_keeps_what_the_newer_connection_says(node: Server, part: str) -> None:
    a = f"{part}-a"
    with here(node, f"{part}-b", part) as ben, here(node, a) as old:
        say(old, part, "old")
        state: dict[str, Any] = {}
        seen(ben, state, lambda now: now == {a: "old"})
        with here(node, a) as new:
            say(new, part, "new")
            old.expect_close(4003)
            seen(ben, state, lambda now: now == {a: "new"})
            say(new, part, "newer")
            seen(ben, state, lambda now: now == {a: "newer"})
        seen(ben, state, lambda now: now == {})


@pytest.mark.req("EXT-06")
def test_it_expires_unless_it_is_said_again(node: Server, part: str) -> None:
    def scenario(ttl_s: float) -> None:
        place, ttl_ms = f"{part}-{ttl_s}", int(ttl_s * 1000)
        a = f"{place}-a"
        with here(node, f"{place}-b", place) as ben, here(node, a) as ann:
            say(ann, place, 1, ttl_ms=ttl_ms)
            state: dict[str, Any] = {}
            seen(ben, state, lambda now: now == {a: 1})
            for _ in range(6):
                time.sleep(ttl_s / 4)
                say(ann, place, 1, ttl_ms=ttl_ms)
            ben.expect_quiet()  # said again: it stays, and nobody is told anything new
            seen(ben, state, lambda now: now == {})

    in_a_window(scenario, 0.4, 2.0, 10.0)


@pytest.mark.req("EXT-06")
@pytest.mark.parametrize("value", [1, 2], ids=["said again", "another value"])
def test_the_last_time_given_counts_also_if_it_is_shorter(node: Server, part: str, value: int) -> None:
    a = f"{part}-a"
    with here(node, f"{part}-b", part) as ben, here(node, a) as ann:
        state: dict[str, Any] = {}
        say(ann, part, 1)
        seen(ben, state, lambda now: now == {a: 1})
        began = time.monotonic()
        say(ann, part, value, ttl_ms=300)
        seen(ben, state, lambda now: now == {})
        assert time.monotonic() - began < 20, "the first time was 30 s"


@pytest.mark.req("EXT-07")
def test_where_it_has_expired_a_client_is_no_longer_present(tmp_path: Path) -> None:
    with (
        running(tmp_path / "data", "--model", "open", "--access-default", "allow") as server,
        here(server, "a") as ann,
        here(server, "b", "next") as ben,
    ):
        for number in range(MAX_OWN_PARTITIONS):
            say(ann, f"p-{number}", 1, ttl_ms=200)
        until(lambda: server.metric("unisono_presences") == 0, "it does not expire")
        say(ann, "next", 1)
        seen(ben, {}, lambda now: now == {"a": 1})


@pytest.mark.req("EXT-07")
def test_readers_may_be_present_and_others_may_not(server: Server, part: str) -> None:
    reading = server.token(f"{part}-a", readable_partitions=[part])
    with here(server, f"{part}-a", part, token=reading) as reader, here(server, f"{part}-b", part) as ben:
        say(reader, part, 1)
        seen(ben, {}, lambda now: now == {f"{part}-a": 1})
        reader.expect("presence_update")
        say(reader, f"{part}-other", 1)
        assert reader.expect_error("forbidden")["details"] == {"partitions": [f"{part}-other"]}


@pytest.mark.req("EXT-07", "AUTH-05")
def test_what_is_refused(server: Server, part: str) -> None:
    with here(server, f"{part}-a", part) as peer:
        for payload, code in (
            ({"partition": "", "value": 1}, "validation_failed"),
            ({"partition": "x" * 129, "value": 1}, "validation_failed"),
            ({"value": 1}, "bad_request"),
            ({"partition": [part], "value": 1}, "bad_request"),
            ({"partition": part, "value": "x" * 1023}, "validation_failed"),
            ({"partition": part, "value": 2**53 + 1}, "validation_failed"),
            ({"partition": part, "value": 1, "ttl_ms": 0}, "bad_request"),
            ({"partition": part, "value": 1, "ttl_ms": 0.5}, "bad_request"),
        ):
            peer.send("presence", payload)
            assert peer.expect_error(code), payload
        peer.raw('{"type":"presence","msg_id":"m","timestamp":1,"protocol_version":"1.0","payload":'
                 f'{{"partition":"{part}","value":"\\ud800"}}}}')  # fmt: skip
        assert peer.receive()["type"] == "error"
        peer.expect_quiet()
        say(peer, part, "x" * 1022)
        assert peer.expect("presence_update")["present"][0]["value"] == "x" * 1022
        peer.send("presence", {"partition": part, "value": 1, "client_id": "another"})
        peer.expect_error("auth_failed")


@pytest.mark.req("EXT-07")
def test_rates_and_numbers_are_limited(server: Server, part: str) -> None:
    with here(server, f"{part}-a") as peer:
        for number in range(MAX_OWN_PARTITIONS + 1):
            say(peer, f"{part}-{number}", 1)
        assert "partitions" in peer.expect_error("rate_limited")["message"]
        say(peer, f"{part}-0", None)
        for number in range(60):
            say(peer, f"{part}-1", number)
        error = peer.expect_error("rate_limited")
        assert "per second" in error["message"]
        assert 0 < error["retry_after_ms"] <= 1000


@pytest.mark.req("EXT-08", "BCAST-04")
def test_a_slow_listener_gets_the_newest_only_and_stays(tmp_path: Path) -> None:
    """It reads nothing while values change a hundred times; then it gets one state, and is no slow consumer."""
    limits = (
        "--max-presence-bytes",
        "4096",
        "--presence-per-s",
        "1000",
        "--max-send-buffer-bytes",
        "4194304",
    )
    with running(tmp_path / "data", "--model", "open", "--access-default", "allow", *limits) as server:
        address = urlsplit(server.url)
        narrow = socket.socket()
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        narrow.connect((address.hostname, address.port))
        slow = here(server, "slow", "p", "big", peer=server.peer(sock=narrow, max_queue=1))
        speakers = [here(server, f"s{number}") for number in range(100)]
        with slow, here(server, "quick", "p") as quick, server.client("writer") as writer:
            # Fill what lies between: the kernel's buffers, and then some of the server's.
            for number in range(5):
                writer.commit(["big"], set_event("a", "x" * 600_000 + str(number)))
            state: dict[str, Any] = {}
            for turn in range(40):
                for number, speaker in enumerate(speakers):
                    say(speaker, "p", f"{turn}-{number}" + "y" * 2000)
                seen(quick, state, lambda now, t=turn: len(now) == 100 and all(
                    value.startswith(f"{t}-") for value in now.values()))  # fmt: skip
            kinds: list[str] = []
            last: dict[str, str] = {}
            while len(last) < 100 or not all(value.startswith("39-") for value in last.values()):
                message = slow.receive()
                kinds.append(message["type"])
                if message["type"] == "presence_update":
                    if message["payload"]["complete"]:
                        last = {}
                    last |= {each["client_id"]: each["value"] for each in message["payload"]["present"]}
            assert kinds.count("event_broadcast") == 5
            assert kinds.count("presence_update") < 20
            assert state == last
        for speaker in speakers:
            speaker.close()


@pytest.mark.req("EXT-05")
def test_nothing_of_it_is_stored(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--model", "open", "--access-default", "allow") as server:
        with here(server, "a", "p") as ann:
            say(ann, "p", "a canary that nobody keeps")
            ann.expect("presence_update")
        server.stop()
        log = SqliteReader.open(server.data)
        assert log.head() == 0
        log.close()
        everything = b"".join(file.read_bytes() for file in server.data.iterdir() if file.is_file())
        assert b"canary" not in everything
        server.start()


@pytest.mark.req("EXT-05", "LIM-05")
def test_nothing_is_left_when_everybody_has_gone(two_fronts: Server, part: str) -> None:
    def presences() -> int:
        text = two_fronts.get("/metrics")
        return sum(
            int(float(line.split()[-1])) for line in text.splitlines() if line.startswith("unisono_presences")
        )

    before = presences()
    peers = [here(two_fronts, f"{part}-{number}") for number in range(20)]
    for number, peer in enumerate(peers):
        say(peer, f"{part}-{number % 3}", number)
    end = time.monotonic() + PATIENCE_S
    while presences() < before + 40:  # each front knows all of them
        assert time.monotonic() < end
    for peer in peers:
        peer.close()
    while presences() > before:
        assert time.monotonic() < end


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("strict") / "data", "--model", "open") as started:
        yield started


@pytest.mark.req("EXT-07")
def test_no_access_no_presence(strict: Server, who: str) -> None:
    with here(strict, who) as peer:
        say(peer, "p", 1)
        peer.expect_error("forbidden")
        with pytest.raises((TimeoutError, Closed)):
            peer.receive(0.3)
