"""`unisono submit` and `unisono tail` against a server, and the tokens they take."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import jwt
import pytest

from tests.behaviour.server.harness import Server
from tests.cli.against_server import at, committed
from tests.commands import unisono
from tests.waiting import PATIENCE_S


def test_submit_takes_an_event_in_each_of_its_forms(server: Server, part: str) -> None:
    where = at(server, part)
    push = {"type": "treePush", "payload": {"target": "outline", "value": {"id": "n1", "title": "Hello"}}}
    lines = "".join(
        json.dumps(push | {"payload": {"target": "explorer", "value": {"id": f"f{n}"}}}) + "\n\n"
        for n in range(150)
    )
    ids = committed(unisono("submit", *where, "--set", "settings.theme=dark"))
    ids += committed(unisono("submit", *where, "--set", 'settings.size={"w": 1}'))
    note = ["--schema", "note.added", "--data", '{"id": "n1", "text": "Hi"}']
    ids += committed(unisono("submit", *where, *note))
    ids += committed(unisono("submit", *where, "--event", json.dumps(push)))
    ids += committed(unisono("submit", *where, "--event", "-", input=lines))
    assert len(ids) == 154
    assert ids == sorted(ids)

    shown = unisono("tail", *at(server, part, "watcher"), "--once", "--json")
    assert shown.exit_code == 0
    events = [json.loads(line) for line in shown.output.splitlines()]
    assert [event["committed_id"] for event in events] == ids
    payloads = [event["event"]["payload"] for event in events]
    assert payloads[0]["value"] == "dark"
    assert payloads[1]["value"] == {"w": 1}
    assert payloads[2] == {"schema": "note.added", "data": {"id": "n1", "text": "Hi"}}
    assert events[3]["event"] == push

    later = unisono("tail", *at(server, part, "watcher"), "--once", "--since", str(ids[2]))
    lines_shown = later.output.splitlines()
    assert len(lines_shown) == 151
    assert re.match(rf" +{ids[3]}  \d\d:\d\d:\d\d  carol  \[{part}\]  treePush  {{", lines_shown[0])


@pytest.mark.req("ORD-03", "ORD-04")
def test_submit_with_the_same_id_is_a_retry(server: Server, part: str) -> None:
    retry = ["submit", *at(server, part), "--id", f"{part}-1", "--set", "settings.theme=dark"]
    first = unisono(*retry)
    assert committed(first)
    assert unisono(*retry).output == first.output
    other = unisono(*retry[:-1], "settings.theme=light")
    assert other.exit_code == 1
    assert "different payload" in other.output


def test_submit_tells_of_a_rejection_by_word_and_exit_code(server: Server, part: str) -> None:
    good, bad = "settings.theme=dark", "nowhere.theme=dark"
    refused = unisono("submit", *at(server, part), "--set", bad)
    assert refused.exit_code == 1
    assert refused.output.startswith("rejected  validation_failed  ")
    assert "event.payload.target: " in refused.output
    events = [
        {"type": "set", "payload": {"target": text.partition("=")[0], "value": 1}}
        for text in (good, bad, good)
    ]
    mixed = unisono("submit", *at(server, part), "--event", "-", input="\n".join(map(json.dumps, events)))
    assert mixed.exit_code == 1
    assert [line.split()[0] for line in mixed.output.splitlines() if line[0] != " "] == [
        "committed", "rejected", "committed",
    ]  # fmt: skip
    note = unisono("submit", *at(server, part), "--schema", "note.added", "--data", '{"id": "n1"}')
    assert note.exit_code == 1
    assert "event.payload.data" in note.output


def test_submit_and_tail_explain_what_they_cannot_do(server: Server, part: str, tmp_path: Path) -> None:
    where = at(server, part)
    for arguments in (
        ["submit", *where],
        ["submit", *where, "--set", "a=1", "--schema", "s"],
        ["submit", *where, "--set", "a"],
        ["submit", *where, "--event", "{"],
        ["submit", *where, "--event", "[]"],
        ["submit", *where, "--schema", "s", "--data", "{"],
        ["submit", *where[:-2], "--set", "a=1"],
        ["submit", "--partition", "p", "--set", "a=1"],
        ["tail", "--partition", "p"],
        ["tail", *where, "--since", "yesterday"],
    ):
        refused = unisono(*arguments, env={"UNISONO_TOKEN": ""})
        assert refused.exit_code == 2, (arguments, refused.output)
        assert "Usage: " in refused.output
        assert "Error: " in refused.output
    many = unisono("submit", *where, "--id", "x", "--event", "-", input='{"type":"a"}\n{"type":"b"}')
    assert many.exit_code == 2
    for arguments, words in (
        (
            ["tail", "--url", server.url, "--token", "no.jwt", "--partition", "p"],
            "nor a file with one: no.jwt",
        ),
        (
            ["tail", "--url", server.url, "--token", f"{forged()[:40]}…", "--partition", "p"],
            "neither a token",
        ),
        (
            ["tail", "--url", server.url, "--token", unnamed(), "--partition", "p"],
            "not a token with a client_id",
        ),
        (["tail", "--url", server.url, "--token", forged(), "--partition", "p"], "auth_failed"),
        (["tail", "--url", "ws://127.0.0.1:1/sync", "--token", forged(), "--partition", "p"], "127.0.0.1:1"),
        (["tail", "--url", server.url, "--token", f"@{tmp_path}/none", "--partition", "p"], "none"),
        (
            ["tail", "--url", server.url.removesuffix("/sync"), "--token", forged(), "--partition", "p"],
            "/sync)",
        ),
    ):
        refused = unisono(*arguments)
        assert refused.exit_code == 1, (arguments, refused.output)
        assert words in refused.output
        assert refused.output.startswith("Error: ")
        assert forged() not in refused.output


def unnamed() -> str:
    return jwt.encode({"exp": 2**31}, "another secret of at least thirty-two bytes", algorithm="HS256")


def forged() -> str:
    claims = {"client_id": "carol", "exp": 2**31}
    return jwt.encode(claims, "another secret of at least thirty-two bytes", algorithm="HS256")


def test_the_token_can_come_from_a_file_or_the_environment(server: Server, part: str, tmp_path: Path) -> None:
    token = server.token("carol")
    file = tmp_path / "carol.jwt"
    file.write_text(token + "\n")
    where = ["--url", server.url, "--partition", part]
    assert committed(unisono("submit", *where, "--token", f"@{file}", "--set", "settings.a=1"))
    assert committed(unisono("submit", *where, "--set", "settings.a=2", env={"UNISONO_TOKEN": token}))


@pytest.mark.req("AUTH-09", "EXT-03")
def test_with_a_token_that_allows_it_nobody_is_replaced(server: Server, part: str) -> None:
    token = server.token("dora", user_id="dora@home", derived_client_ids=True, claims={"role": "x"})
    where = ["--url", server.url, "--token", token, "--partition", part]
    with server.peer() as running:
        running.connect("dora", token, supported_profiles=["compatibility"])
        running.subscribe(part)
        assert committed(unisono("submit", *where, "--set", "settings.a=1"))
        assert re.fullmatch(r"dora/submit-[0-9a-f]{8}", running.expect("event_broadcast")["client_id"])
        shown = unisono("tail", *where, "--once")
        assert re.search(r"  dora/submit-[0-9a-f]{8} \(dora@home\)  ", shown.output)
        assert json.loads(unisono("tail", *where, "--once", "--json").output)["user_id"] == "dora@home"
        running.send("heartbeat", {})
        running.expect("heartbeat_ack")


def test_on_a_terminal_whose_connection_is_taken_is_told(server: Server, part: str) -> None:
    """Into a pipe nothing is said, so that scripts read what they always read."""
    where = ["--url", server.url, "--token", server.token("emil"), "--partition", part]
    command = [sys.executable, "-m", "unisono", "tail", *where, "--once"]
    leader, follower = pty.openpty()
    with os.fdopen(leader, "rb", buffering=0) as terminal:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=follower)
        os.close(follower)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert b"connecting as 'emil'; a client that is connected" in terminal.read(4096)
    assert unisono("tail", *where, "--once").output == ""


@pytest.mark.req("EXT-20")
def test_history_shows_the_newest_first(server: Server, part: str) -> None:
    where = at(server, part)
    ids = [committed(unisono("submit", *where, "--set", f"settings.theme={n}"))[0] for n in range(5)]
    url_and_token = at(server, part, "reader")[:-2]
    shown = unisono("history", *url_and_token, "--limit", "3", "--json", part)
    assert shown.exit_code == 0, shown.output
    events = [json.loads(line) for line in shown.output.splitlines()]
    assert [event["committed_id"] for event in events] == ids[:1:-1]
    assert events[0]["event"]["payload"]["value"] == 4
    lines = unisono(
        "history", *url_and_token, "--before", str(ids[3]), "--limit", "2", part
    ).output.splitlines()
    assert re.match(rf" +{ids[2]}  \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d  carol  \[{part}\]  set  {{", lines[0])
    assert lines[2] == f"-- older ones: --before {ids[1]} --"
    everything = unisono("history", *url_and_token, "--partition", part).output.splitlines()
    assert len(everything) == 5
    assert unisono("history", *url_and_token, f"{part}-none").output == ""
    for wrong in ((), (part, "--partition", part)):
        assert "name one partition: --partition P" in unisono("history", *url_and_token, *wrong).output
