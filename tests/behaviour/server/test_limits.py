"""Limits and pressure, over real sockets: every bound, and what happens to whoever reaches it."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.asyncio.client import connect as open_websocket

from tests.behaviour.server.embedded import Embedded, connections_in_memory, nothing_collected
from tests.behaviour.server.harness import SECRET, Server, item, running, running_by_window, set_event
from tests.behaviour.server.pressure import (
    CLOSE,
    MESSAGE_BYTES_MAX,
    TEXT,
    RawSocket,
    authority_stopped,
    rate_limited,
    sets,
    settled,
    sized,
)
from tests.client.running import until as until_then
from tests.waiting import in_a_window, until
from unisono.front.auth.verify import sign_token
from unisono.front.early_messages import MAX_EARLY_MESSAGES

# -- advertised ----------------------------------------------------------------------------------------------


@pytest.mark.req("LIM-01")
def test_the_limits_are_advertised_with_their_defaults(server: Server, who: str) -> None:
    with server.peer() as peer:
        limits = peer.connect(who, server.token(who))["limits"]
    assert limits == {
        "max_batch_size": 100,
        "sync_limit_min": 50,
        "sync_limit_max": 1000,
        "max_message_bytes": 1024 * 1024,
        "max_in_flight_drafts": 200,
        "max_subscriptions": 1000,
    }


@pytest.mark.req("LIM-01", "SYNC-02", "SUBMIT-01")
def test_configured_limits_are_advertised_and_kept(small: Server, who: str, part: str) -> None:
    with small.peer() as peer:
        connected = peer.connect(who, small.token(who), supported_profiles=["compatibility"])
        assert connected["limits"] == {
            "max_batch_size": 5,
            "sync_limit_min": 2,
            "sync_limit_max": 3,
            "max_message_bytes": MESSAGE_BYTES_MAX,
            "max_in_flight_drafts": 8,
            "max_subscriptions": 3,
        }
        peer.send("submit_events", {"events": sets(part, 6)})
        peer.expect_error("bad_request")
        assert peer.history([part]) == []
        assert len(peer.submit(*sets(part, 5))) == 5
        for asked, given in ((1, 2), (2, 2), (3, 3), (1000, 3), (-5, 2)):
            assert len(peer.sync([part], limit=asked)["events"]) == given
        peer.send(
            "sync",
            {"partitions": [part], "since_committed_id": 0, "subscription_partitions": list("abcd")},
        )
        peer.expect_error("validation_failed")
        assert peer.sync([part], subscription_partitions=list("cba"))["effective_subscriptions"] == list(
            "abc"
        )


# -- in flight -----------------------------------------------------------------------------------------------


@pytest.mark.req("LIM-03", "LIM-05", "ERR-01")
def test_more_drafts_in_flight_than_allowed_are_not_processed(small: Server, who: str, part: str) -> None:
    with small.client(who) as peer:
        with authority_stopped(small):
            peer.send("submit_events", {"events": sets(part, 5)})
            peer.send("submit_event", sets(part, 1)[0])
            refused = sets(part, 3)
            peer.send("submit_events", {"events": refused})  # 6 + 3 > 8, and none of the three fits alone
            rate_limited(peer)
            peer.send("submit_events", {"events": sets(part, 2)})  # 6 + 2 = 8 is exactly the limit
            peer.send("submit_event", sets(part, 1)[0])
            rate_limited(peer)
            settled(peer)
        assert len(peer.expect("submit_events_result")["results"]) == 5
        peer.expect("event_committed")
        assert len(peer.expect("submit_events_result")["results"]) == 2
        assert len(peer.history([part])) == 8
        assert small.metric("unisono_in_flight_items") == 0
        results = peer.submit(*refused)
        assert {result["status"] for result in results} == {"committed"}
        assert len(peer.history([part])) == 11


@pytest.mark.req("LIM-05", "LIM-03")
def test_a_full_queue_to_the_authority_refuses_everybody_until_it_moves(small: Server, part: str) -> None:
    with small.client(f"{part}-a") as first, small.client(f"{part}-b") as second:
        with authority_stopped(small):
            first.send("submit_events", {"events": sets(part, 5)})
            first.send("submit_events", {"events": sets(part, 3)})
            settled(first)
            second.send("submit_events", {"events": sets(part, 5)})  # its own limit allows it: 8 + 5 > 12
            rate_limited(second)
            second.send("submit_events", {"events": sets(part, 4)})
            second.send("submit_event", sets(part, 1)[0])
            rate_limited(second)
        assert len(second.expect("submit_events_result")["results"]) == 4
        second.send("submit_event", sets(part, 1)[0])
        second.expect("event_committed")
        assert len(second.history([part])) == 13


@pytest.mark.req("LIM-03", "LIM-05")
def test_what_a_connection_that_ended_has_queued_counts_until_it_is_judged(
    small: Server, who: str, part: str
) -> None:
    with small.client(f"{who}-b") as other, small.client(who) as leaver:
        with authority_stopped(small):
            leaver.send("submit_events", {"events": sets(part, 5)})
            leaver.send("submit_events", {"events": sets(part, 3)})
            leaver.send("disconnect", {})
            leaver.expect_close(1000)
            other.send("submit_events", {"events": sets(part, 5)})  # 8 + 5 > 12
            rate_limited(other)
            other.send("submit_events", {"events": sets(part, 4)})
            settled(other)
        other.expect("submit_events_result")
        for _ in range(2):  # all twelve places are free again, for two requests each
            other.send("submit_events", {"events": sets(part, 5)})
            other.send("submit_events", {"events": sets(part, 3)})
            for _ in range(2):
                other.expect("submit_events_result")


@pytest.mark.req("LIM-05", "ERR-01")
def test_syncs_wait_their_turn_in_a_bounded_queue(small: Server, who: str, part: str) -> None:
    request = {"partitions": [part], "since_committed_id": 0}
    with small.client(who) as peer:
        with authority_stopped(small):
            for limit in (1, 2, 3):  # one under way, two waiting
                peer.send("sync", request | {"subscription_partitions": [f"{part}-{limit}"]})
            peer.send("sync", request | {"subscription_partitions": ["not this one"]})
            rate_limited(peer)
            settled(peer)
        for number in (1, 2, 3):
            assert peer.expect("sync_response")["effective_subscriptions"] == [f"{part}-{number}"]
        assert peer.sync([part])["effective_subscriptions"] == [f"{part}-3"]


@pytest.mark.req("LIM-05", "CONN-10")
def test_messages_behind_an_unanswered_connect_are_held_in_a_bounded_queue(
    small_two_fronts: Server, who: str
) -> None:
    small = small_two_fronts
    with small.peer() as patient, small.peer() as flooding, small.peer() as heavy:
        with authority_stopped(small):
            for peer, client_id in ((patient, who), (flooding, f"{who}-b"), (heavy, f"{who}-c")):
                profile = ["compatibility"]
                token = small.token(client_id)
                peer.send("connect", {"token": token, "client_id": client_id, "supported_profiles": profile})
            small_one = '{"a":1}'
            for peer in (patient, flooding):
                for _ in range(MAX_EARLY_MESSAGES):
                    peer.raw(small_one)
            flooding.raw(small_one)
            assert "before connected" in flooding.expect_close(4006)
            for _ in range(3):  # each may be sent, but not all of them before anything is proven
                heavy.raw(sized(MESSAGE_BYTES_MAX // 2).decode())
            assert "before connected" in heavy.expect_close(4006)
            patient.expect_quiet()
        patient.expect("connected")
        for _ in range(MAX_EARLY_MESSAGES):
            patient.expect_error("bad_request")
        settled(patient)


# -- rate and number of connections --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Few connections, and an event per minute after the first four."""
    data = tmp_path_factory.mktemp("strict") / "data"
    with running(
        data, "--access-default", "allow", "--rate-events-per-s", "0.0166", "--rate-burst-events", "4",
        "--max-connections", "3",
    ) as started:  # fmt: skip
        yield started


@pytest.mark.req("LIM-04", "ERR-01")
def test_a_client_above_its_rate_is_refused_by_itself(strict: Server, who: str, part: str) -> None:
    with strict.client(who) as peer, strict.client(f"{who}-b") as other:
        peer.submit(*sets(part, 3))
        peer.send("submit_events", {"events": sets(part, 4)})
        assert 120_000 < rate_limited(peer) <= 180_800  # three events, but for the time that has passed
        other.submit(*sets(part, 4))  # its own bucket
        assert len(peer.history([part])) == 7  # reading is not submitting


@pytest.mark.req("LIM-04", "ERR-01")
def test_a_client_above_its_rate_is_told_when_to_come_again(tmp_path: Path, who: str, part: str) -> None:
    def come_again(per_s: float) -> None:
        server = rated(per_s)
        with server.client(who) as peer:
            first, refused = sets(part, 3), sets(part, 4)
            peer.send("submit_events", {"events": first})
            peer.send("submit_events", {"events": refused})
            wait_ms = rate_limited(peer)  # told at once, while the first are still being judged
            told = time.monotonic()
            assert wait_ms <= 3_001 / per_s
            peer.expect("submit_events_result")
            time.sleep(max(0.0, wait_ms / 1000 - (time.monotonic() - told)))
            assert {result["status"] for result in peer.submit(*refused)} == {"committed"}

    rates = ("--rate-events-per-s", "{}", "--rate-burst-events", "4")
    with running_by_window(tmp_path, "--access-default", "allow", *rates) as rated:
        in_a_window(come_again, 10.0, 2.0, 0.2)


@pytest.mark.req("LIM-04")
def test_reconnecting_does_not_fill_the_bucket(strict: Server, who: str, part: str) -> None:
    with strict.client(who) as peer:
        peer.submit(*sets(part, 4))
    with strict.client(who) as peer:
        peer.send("submit_events", {"events": sets(part, 4)})
        rate_limited(peer)


@pytest.mark.req("LIM-04")
def test_without_the_option_there_is_no_rate_limit(server: Server, who: str, part: str) -> None:
    with server.client(who) as peer:
        for _ in range(5):
            peer.submit(*sets(part, 100))


@pytest.mark.req("LIM-05", "CONN-10")
def test_one_connection_too_many_is_closed_with_4006(strict: Server, who: str) -> None:
    until(lambda: strict.metric("unisono_connections") == 0, "somebody is still connected")
    with strict.client(who) as connected, strict.peer(), strict.peer() as third:
        for _ in range(3):
            with strict.peer() as fourth:
                assert "too many" in fourth.expect_close(4006)
        settled(connected)
        third.close()
        until(lambda: strict.metric("unisono_connections") == 2, "who left is still connected")
        with strict.client(f"{who}-b") as again:
            settled(again)


# -- slow consumers ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Small buffers towards clients and towards the authority."""
    data = tmp_path_factory.mktemp("narrow") / "data"
    with running(
        data, "--access-default", "allow", "--max-send-buffer-bytes", "1650000", "--max-subscriptions", "64",
        "--max-message-bytes", "700000", "--max-queue-bytes", str(1024 * 1024),
    ) as started:  # fmt: skip
        yield started


@pytest.mark.req("LIM-05", "BCAST-03", "BCAST-04", "CONN-10")
def test_a_slow_consumer_is_closed_and_its_neighbours_get_everything(narrow: Server, part: str) -> None:
    names = [f"{part}-{n}" for n in range(4)]
    with (
        RawSocket(narrow.url, receive_buffer_bytes=4096) as slow,
        narrow.client(names[1]) as near,
        narrow.client(names[2]) as far,
        narrow.client(names[3]) as writer,
    ):
        slow.send(
            "connect",
            {"token": narrow.token(names[0]), "client_id": names[0], "supported_profiles": ["compatibility"]},
        )
        slow.expect("connected")
        slow.send("sync", {"partitions": [part], "since_committed_id": 0, "subscription_partitions": [part]})
        slow.expect("sync_response")
        near.subscribe(part)
        far.subscribe(part)
        sent: list[int] = []
        while not narrow.metric("unisono_closes_total", code="4005"):
            assert len(sent) < 400, "the slow consumer was never closed"
            results = writer.submit(*(item([part], set_event("x", "y" * 50_000)) for _ in range(10)))
            committed = [result["committed_id"] for result in results]
            sent += committed
            for neighbour in (near, far):
                assert [neighbour.expect("event_broadcast")["committed_id"] for _ in committed] == committed
        sent.append(writer.commit([part], set_event("x", "after")))
        for neighbour in (near, far):
            assert neighbour.expect("event_broadcast")["committed_id"] == sent[-1]
            neighbour.expect_quiet(0.05)
        got: list[int] = []
        while (message := slow.receive())[0] == TEXT:
            got.append(json.loads(message[1])["payload"]["committed_id"])
        assert message[0] == CLOSE
        assert struct.unpack("!H", message[1][:2]) == (4005,)
        assert got == sent[: len(got)]  # a beginning without a gap; the rest comes by sync
        assert len(got) < len(sent)


@pytest.mark.req("LIM-05", "LIM-03")
def test_bytes_waiting_for_judgement_are_bounded(narrow: Server, who: str, part: str) -> None:
    with narrow.client(who) as peer:
        large = set_event("x", "y" * 600_000)
        with authority_stopped(narrow):
            peer.send("submit_event", item([part], large))
            peer.send("submit_event", item([part], large))
            rate_limited(peer)
            peer.send("submit_event", item([part], set_event("x", "small")))
            settled(peer)
        peer.expect("event_committed")
        peer.expect("event_committed")
        peer.send("submit_event", item([part], large))
        peer.expect("event_committed")


# -- memory --------------------------------------------------------------------------------------------------


@pytest.mark.req("LIM-05")
@pytest.mark.usefixtures("embedding")
def test_connections_that_are_gone_are_forgotten_long_before_their_timers_end(tmp_path: Path) -> None:
    embedded = Embedded(tmp_path, heartbeat_timeout_s=600, handshake_timeout_s=600, close_grace_s=600)

    async def come_and_go(url: str, client_id: str) -> None:
        token = sign_token(SECRET, client_id, ttl_s=86_400, now_s=time.time())
        payload = {"token": token, "client_id": client_id}
        message = {"type": "connect", "msg_id": "m", "timestamp": 1, "protocol_version": "1.0"}
        async with open_websocket(url, proxy=None) as peer:
            await peer.send(json.dumps(message | {"payload": payload}))
            assert json.loads(await peer.recv())["type"] == "connected"

    async def scenario() -> None:
        async with embedded.front() as (_, url):
            for number in range(20):
                await come_and_go(url, f"client-{number}")
            await until_then(lambda: not connections_in_memory())

    with embedded.running(), nothing_collected():
        asyncio.run(scenario())
