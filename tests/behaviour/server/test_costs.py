"""What one message may cost the others: large events, many partitions, rules that do not return (LIM-07)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.authority.endless import write_endless_model
from tests.behaviour.server.harness import Peer, Server, item, running, set_event
from tests.waiting import PATIENCE_S
from unisono.authority.stuck_rules import GRACE_S, STUCK_FILE

MIB = 1024 * 1024


def event(schema: str, **data: Any) -> dict[str, Any]:
    return {"type": "event", "payload": {"schema": schema, "data": data}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("costs")
    model = write_endless_model(place / "model")
    with running(
        place / "data", "--access-default", "allow", "--model", str(model), "--rule-timeout-s", "1"
    ) as started:
        yield started


def nasty(unit: str, room: int = MIB - 600) -> str:
    """An array of as many of these as a message holds."""
    return "[" + ",".join([unit] * (room // (len(unit) + 1))) + "]"


def used_s(server: Server) -> float:
    """CPU time of all processes of a server: unlike the time that passes, it does not depend on who else works."""
    ticks = 0
    for pid in server.children():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@pytest.mark.req("LIM-07")
@pytest.mark.parametrize("profile", ["compatibility", "canonical"])
@pytest.mark.parametrize("unit", ["[]", '{"a":{}}', "[" * 25 + "]" * 25, "5e-324"])
def test_a_message_of_tiny_values_costs_no_more_than_its_bytes(
    server: Server, unit: str, profile: str
) -> None:
    """Generously, for all processes together: walking through such a value in Python takes seconds each time."""
    name = f"tiny-{profile}-{len(unit)}"
    with server.client(name, profile) as peer:
        made = set_event("x", "@") if profile == "compatibility" else event("keeps", value="@")
        before = used_s(server)
        peer.raw(compact(peer, item([f"{name}-a", f"{name}-b"], made)).replace('"@"', nasty(unit)))
        assert peer.expect("event_committed")
        assert used_s(server) - before < 2.0


def compact(peer: Peer, submitted: dict[str, Any]) -> str:
    """One `submit_event` without the spaces that json.dumps puts between values."""
    return json.dumps(peer.envelope("submit_event", submitted), separators=(",", ":"))


@pytest.mark.req("LIM-07", "LIM-05")
def test_bytes_times_partitions_are_bounded(server: Server) -> None:
    names = [f"spread-{n:02}" for n in range(64)]
    with server.client("spreading") as peer:
        peer.raw(compact(peer, item(names[:1], set_event("x", "y" * (MIB - 500)))))
        assert peer.expect("event_committed")
        assert peer.commit(names, set_event("x", "y" * 16 * 1024))
        peer.raw(compact(peer, item(names, set_event("x", "y" * (MIB - 3000)))))
        refused = peer.expect("event_rejected", timeout_s=PATIENCE_S)
        assert refused["reason"] == "validation_failed"
        (error,) = refused["errors"]
        assert error["field"] == "partitions"
        assert "64 partitions" in error["message"]
        assert f"at most {2 * MIB}" in error["message"]
        assert peer.commit(names, set_event("x", 1))


@pytest.mark.req("LIM-07", "ORD-06")
def test_the_canonical_form_is_bounded(server: Server) -> None:
    def tens(count: int) -> str:
        return json.dumps(set_event("x", "@")).replace('"@"', "[" + ",".join(["1e20"] * count) + "]")

    def submit(peer: Peer, *events: str) -> None:
        items = ",".join(
            f'{{"id":"tens-{time.monotonic_ns()}-{n}","partitions":["canon"],"event":{text}}}'
            for n, text in enumerate(events)
        )
        peer.raw(json.dumps(peer.envelope("submit_events", {"events": "@"})).replace('"@"', f"[{items}]"))

    with server.client("canon") as peer:
        submit(peer, tens(100_000))
        (refused,) = peer.expect("submit_events_result")["results"]
        assert refused["reason"] == "validation_failed"
        assert refused["errors"] == [
            {
                "field": "event",
                "message": f"has 2200076 bytes in canonical form, at most {MIB} are allowed",
            }
        ]
        submit(peer, tens(40_000))
        (taken,) = peer.expect("submit_events_result")["results"]
        assert taken["status"] == "committed"
        submit(peer, tens(40_000), tens(40_000))
        assert "in canonical form" in peer.expect_error("bad_request")["message"]
        peer.commit(["canon"], set_event("x", 1))


@pytest.mark.req("LIM-07", "VAL-03")
@pytest.mark.parametrize("schema", ["loops", "swallows", "backtracks", "sleeps", "changes"])
def test_a_rule_that_does_not_return_is_stopped(server: Server, schema: str) -> None:
    with server.client(f"stopped-{schema}", "canonical") as peer:
        peer.commit([schema], event("counts"))
        first, refused, last = peer.submit(
            item([schema], event("counts")),
            item([schema, "q"], event(schema)),
            item([schema], event("counts")),
        )
        assert (first["status"], refused["status"], last["status"]) == ("committed", "rejected", "committed")
        assert refused["reason"] == "validation_failed"
        message = refused["errors"][-1]["message"]
        assert schema in message
        assert "have 1 s in" in message
        assert server.metric("unisono_rules_stopped_total", rule=f"{schema}/{schema}") == 1


@pytest.mark.req("LIM-07", "DUR-04")
def test_a_rule_that_cannot_be_stopped_ends_the_server_once(tmp_path: Path) -> None:
    """C code that never returns keeps every thread of the process from running."""
    model = write_endless_model(tmp_path / "model")
    options = ("--access-default", "allow", "--model", str(model), "--rule-timeout-s", "0.3")
    with running(tmp_path / "data", *options) as server, server.client("c", "canonical") as peer:
        peer.commit(["p"], event("counts"))
        peer.send("submit_event", item(["p"], event("adds"), id="the-one"))
        assert server.process.wait(timeout=PATIENCE_S + GRACE_S) != 0
        said = server.log.read_text()
        assert "adds/adds" in said
        assert "'the-one'" in said
    assert json.loads((tmp_path / "data" / STUCK_FILE).read_text())["event_id"] == "the-one"
    with running(tmp_path / "data", *options) as server, server.client("c", "canonical") as peer:
        refused, fine = peer.submit(item(["p"], event("adds"), id="the-one"), item(["p"], event("counts")))
        assert refused["reason"] == "validation_failed"
        assert "adds/adds" in refused["errors"][0]["message"]
        assert fine["status"] == "committed"
        assert [each["event"]["payload"]["schema"] for each in peer.history(["p"])] == ["counts", "counts"]


@pytest.mark.req("LIM-05", "BCAST-04", "LIM-07")
def test_the_largest_event_reaches_a_slow_reader(tmp_path: Path) -> None:
    """By sync and by broadcast, with the smallest buffer the settings allow."""
    names = sorted(f"{n:02}" + "\x01" * 126 for n in range(64))
    bytes_max = 600_000
    needed = 2 * (bytes_max + 64 * 1024) + 2 * (6 * 128 + 3) * 64
    options = (
        "--access-default", "allow", "--max-message-bytes", str(bytes_max), "--max-subscriptions", "64",
        "--max-send-buffer-bytes", str(needed),
    )  # fmt: skip
    with running(tmp_path / "data", *options) as server, server.client("w" + "\x02" * 200) as writer:
        slow = server.client("slow")
        slow.subscribe(*names)
        spread = writer.commit(names, set_event("x", "y" * 18_000), id="\x03" * 128)
        assert slow.expect("event_broadcast")["committed_id"] == spread
        largest = item(names[:1], set_event("x", "z" * (bytes_max - 2_000)))
        writer.raw(compact(writer, largest))
        told = writer.expect("event_committed")["committed_id"]
        time.sleep(0.2)
        assert slow.expect("event_broadcast")["committed_id"] == told
        slow.close()
        with server.client("again") as again:
            page = again.sync(names, subscription_partitions=names)
            events = page["events"]
            while page["has_more"]:
                page = again.sync(names, page["next_since_committed_id"])
                events += page["events"]
            assert [each["committed_id"] for each in events] == [spread, told]
