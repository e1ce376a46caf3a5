"""`unisono bench` against a server: what it writes, what it prints, and what it says when it cannot."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from click.testing import Result

from tests.behaviour.server.harness import SECRET, Server, running
from tests.commands import unisono
from unisono.front.auth.verify import sign_token

NOTE = '{"type": "event", "payload": {"schema": "note.added", "data": {"id": "n{n}", "text": "x"}}}'


def bench(server: Server, *arguments: str) -> Result:
    """It ends when it has written enough, however slow the machine is."""
    bounds = ("--seconds", "60", "--events-max", "100")
    return unisono("bench", "--url", server.url, *bounds, *arguments, env={"UNISONO_TOKEN": ""})


def signing(server: Server) -> list[str]:
    return ["--jwt-secret-file", str(server.secret_file), "--yes"]


def written_to(server: Server, result: Result, connections: int) -> list[int]:
    """How many events there are in each of the partitions that the command named."""
    where = re.search(r"to the partitions (\S+/)\*", result.output)
    assert where is not None, result.output
    reader = server.client(f"reader-{time.monotonic_ns()}")
    counts = [len(reader.history([f"{where[1]}{number}"])) for number in range(connections)]
    reader.close()
    return counts


def test_bench_writes_what_it_announces_and_no_more(server: Server) -> None:
    result = bench(server, *signing(server), "--connections", "3", "--json", "--batch", "7")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["connections"], found["batch"]) == (3, 7)
    assert 0 < found["events"] <= found["written"] <= 100
    assert found["events"] / found["events_per_s"] == pytest.approx(found["seconds"], abs=0.001)
    for kind in ("submit", "echo"):
        assert 0 < found[f"{kind}_p50_ms"] <= found[f"{kind}_p90_ms"] <= found[f"{kind}_p99_ms"]
    assert sum(written_to(server, result, 3)) == found["written"]
    assert "at most 100 events" in result.stderr


def test_bench_ends_in_time(server: Server) -> None:
    result = bench(server, *signing(server), "--seconds", "1", "--events-max", "1000000", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["seconds"] <= 1
    assert "It ended at" not in result.output


def test_bench_ends_at_the_number_of_events(server: Server) -> None:
    result = bench(server, *signing(server), "--events-max", "25", "--batch", "10")
    assert result.exit_code == 0, result.output
    assert "It ended at --events-max 25." in result.output
    assert "events/s durable" in result.output
    assert sum(written_to(server, result, 10)) == 25


def test_bench_writes_nothing_before_it_is_told_to(server: Server) -> None:
    before = server.metric("unisono_group_events_sum")
    refused = bench(server, *signing(server)[:2])
    assert refused.exit_code == 1
    assert "nothing was written: add --yes" in refused.output
    assert server.metric("unisono_group_events_sum") == before


def test_bench_takes_an_event_of_the_model(server: Server) -> None:
    result = bench(server, *signing(server), "--event", NOTE, "--connections", "2")
    assert result.exit_code == 0, result.output
    assert sum(written_to(server, result, 2)) > 0


def test_bench_has_one_connection_for_each_token(server: Server, tmp_path: Path) -> None:
    tokens = [server.token(f"client-{number}") for number in range(3)]
    file = tmp_path / "tokens"
    file.write_text("\n".join(tokens) + "\n")
    result = bench(server, "--token", f"@{file}", "--yes", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["connections"] == 3
    for arguments, words in (
        (["--token", f"@{file}", "--connections", "4"], "4 with 3 token"),
        (["--token", tokens[0], "--token", tokens[0]], "one connection at a time"),
        ([], "give --token"),
        (["--token", tokens[0], "--event", "{"], "not JSON"),
        (["--token", tokens[0], "--event", "[]"], "a JSON object"),
    ):
        refused = bench(server, "--yes", *arguments)
        assert refused.exit_code == 2, (arguments, refused.output)
        assert words in refused.output


def test_bench_says_what_to_do_about_a_refusal(server: Server, tmp_path: Path) -> None:
    own = sign_token(SECRET, "carol", ttl_s=60, now_s=time.time(), prefixes=["own/"])
    forged = sign_token(b"another secret of at least 32 bytes!", "carol", ttl_s=60, now_s=time.time())
    for arguments, words in (
        (["--token", own], "give --prefix"),
        (["--token", own, "--prefix", "own/", "--event", '{"type":"set"}'], "with --event"),
        (["--token", forged], "made for this server"),
        (["--token", "no token"], "not a token"),
        (["--token", f"@{tmp_path}/none"], "none"),
        (["--token", own, "--url", "ws://127.0.0.1:1/sync"], "127.0.0.1:1"),
        (["--token", own, "--url", "here"], "cannot connect to here"),
        (["--dev", "--data", str(tmp_path)], "unisono serve --dev"),
    ):
        refused = bench(server, "--yes", *arguments)
        assert refused.exit_code == 1, (arguments, refused.output)
        assert words in refused.output, refused.output
        assert own not in refused.output
        assert forged not in refused.output
    allowed = bench(server, "--yes", "--token", own, "--prefix", "own/")
    assert allowed.exit_code == 0, allowed.output


def test_bench_of_a_development_server_needs_no_token_and_no_yes(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--access-default", "allow") as server:
        (server.data / "dev-secret").write_bytes(SECRET)
        result = bench(server, "--dev", "--data", str(server.data))
        assert result.exit_code == 0, result.output


def test_bench_names_the_limits_of_a_server_that_has_them(tmp_path: Path) -> None:
    limits = ("--rate-events-per-s", "1", "--rate-burst-events", "100")
    with running(tmp_path / "data", "--access-default", "allow", *limits) as server:
        refused = bench(
            server, *signing(server), "--events-max", "1000", "--batch", "50", "--connections", "1"
        )
        assert refused.exit_code == 1, refused.output
        assert "rate_events_per_s" in refused.output
