"""A reload reads the log through the new model before it switches, beside the server's work."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from tests.behaviour.server.harness import Peer, Server, item, running, tree_event
from tests.behaviour.server.planting import history, plant
from tests.behaviour.server.reloading import announced_version, post, run_reload
from tests.lake.lakes import export_to
from tests.waiting import PATIENCE_S, until
from unisono.config import Settings
from unisono.ipc.files import ADMIN_FILE
from unisono.lake.cold.archive import ArchiveFailed
from unisono.lake.lake import Lake
from unisono.model.model import open_model
from unisono.node.model_review import ReviewProgress, ReviewWatch, review_log
from unisono.protocol.tombstones import tombstone
from unisono.store.sqlite.log import SqliteLog

RULES = """
import time
from unisono.model.rules import Rules

rules = Rules()

@rules.reduce("note")
def kept(state, event):
    {body}

@rules.check("fail")
def failing(state, event):
    raise ValueError("always")
"""
ANY = "state[event.data.get('id', 'none')] = event.data"
NEEDS_ID = "state[event.data['id']] = event.data"


def write_model(path: Path, version: int, body: str = ANY, schema: str = "{}") -> None:
    (path / "schemas").mkdir(parents=True, exist_ok=True)
    (path / "schemas" / "note.json").write_text(schema)
    (path / "schemas" / "fail.json").write_text("{}")
    (path / "rules.py").write_text(RULES.format(body=body))
    (path / "model.toml").write_text(f'name = "n"\nmodel_version = {version}\nrules = "rules.py"\n')


def note(schema: str = "note", **data: Any) -> dict[str, Any]:
    return {"type": "event", "payload": {"schema": schema, "data": data}}


def order(server: Server, query: str = "") -> tuple[int, dict[str, Any]]:
    token = json.loads((server.data / ADMIN_FILE).read_text())["token"]
    return post(server, f"/orders/reload{query}", Authorization=f"Bearer {token}")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    write_model(tmp_path / "model", 1)
    model = ("--model", str(tmp_path / "model"))
    with running(tmp_path / "data", "--access-default", "allow", *model) as started:
        yield started


@pytest.fixture
def peer(server: Server) -> Iterator[Peer]:
    """Ten notes, three of them without an id, and two of those in two partitions; and a tree."""
    with server.client("a", "canonical") as connected:
        for number in range(7):
            connected.commit(["p"], note(id=str(number)))
        connected.commit(["p"], note())
        for _ in range(2):
            connected.commit(["p", "q"], note())
        with server.client("tree") as tree:
            tree.commit(["p"], tree_event("A"))
        yield connected


@pytest.mark.req("MODEL-02")
def test_what_no_longer_applies_is_told_before_the_switch(server: Server, peer: Peer, tmp_path: Path) -> None:
    write_model(tmp_path / "model", 2, NEEDS_ID, '{"maxProperties": 0}')
    looked = run_reload(server.data, "--dry-run")
    assert looked.returncode == 0, looked.stderr
    assert "history up to 11: 11 events in 2 partitions\n  3 no longer apply" in looked.stdout
    assert (
        "    note: 3 of 10\n      event 8 in 'p': the reducer 'kept' of 'note' failed: KeyError: 'id'"
        in looked.stdout
    )
    assert "7 still apply, and would be refused" in looked.stdout
    assert "model_version 1 would be 2" in looked.stdout
    peer.expect_quiet(0.05)
    strict = run_reload(server.data, "--strict")
    assert strict.returncode == 1
    assert "3 committed events no longer apply" in strict.stderr
    assert announced_version(server, "b") == 1
    done = run_reload(server.data)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines.index("  3 no longer apply: they stay in the log and change no state") < lines.index(
        "model_version 1 → 2"
    )
    assert peer.expect("version_changed")["new_model_version"] == 2
    # What did not apply before either is no news, and does not keep a strict order from being followed.
    write_model(tmp_path / "model", 3, NEEDS_ID)
    again = run_reload(server.data, "--strict")
    assert again.returncode == 0, again.stderr
    assert "  0 no longer apply" in again.stdout
    assert "3 more did not apply before either" in again.stdout


@pytest.mark.req("MODEL-02")
def test_the_admin_port_and_sighup_tell_the_same(server: Server, peer: Peer, tmp_path: Path) -> None:
    write_model(tmp_path / "model", 2, NEEDS_ID)
    status, told = order(server, "?dry_run=1")
    assert (status, told["history"]["no_longer"], told["history"]["upto"]) == (200, 3, 11)
    status, told = order(server, "?strict=true")
    assert (status, told["history"]["no_longer"]) == (409, 3)
    assert announced_version(server, "b") == 1
    server.process.send_signal(signal.SIGHUP)
    assert peer.expect("version_changed")["new_model_version"] == 2
    until(lambda: "reload done" in server.log.read_text(), "the reload is not logged")
    log = server.log.read_text()
    assert log.index("3 no longer apply") < log.index("version 1 replaced by 2") < log.index("reload done")
    write_model(tmp_path / "model", 3, "pass")
    status, told = order(server, "?skip_history=1")
    assert (status, told["new_model_version"]) == (200, 3)
    assert "history" not in told


@pytest.mark.req("MODEL-02")
def test_a_rule_that_does_not_return_is_named_and_never_gets_into_force(
    server: Server, peer: Peer, tmp_path: Path
) -> None:
    """Meanwhile others commit: the server is not what waits. (Rules that keep a core busy: test_costs.)"""
    write_model(tmp_path / "model", 2, "while 'id' not in event.data: time.sleep(0.05)")
    command = [sys.executable, "-m", "unisono", "model", "reload", "--data", str(server.data)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as reloading:
        commits = 0
        while reloading.poll() is None:
            commits += 1
            peer.commit(["p"], note(id="x"))
            time.sleep(0.05)
        assert reloading.stderr is not None
        said = reloading.stderr.read()
    assert reloading.returncode == 1
    assert "the rule note/kept did not return within 10 s on event 8 in 'p'" in said
    assert commits > 10
    peer.expect_quiet(0.05)
    assert announced_version(server, "b") == 1


@pytest.mark.req("MODEL-02")
def test_files_that_change_meanwhile_are_not_put_into_force(
    server: Server, peer: Peer, tmp_path: Path
) -> None:
    write_model(tmp_path / "model", 2, "time.sleep(0.5)")
    answers: list[tuple[int, dict[str, Any]]] = []
    ordering = threading.Thread(target=lambda: answers.append(order(server)))
    ordering.start()
    until(lambda: bool(readers(server)), "no process reads the log")
    write_model(tmp_path / "model", 3, NEEDS_ID)
    ordering.join(PATIENCE_S)
    ((status, told),) = answers
    assert status == 409
    assert "changed" in told["error"]
    assert announced_version(server, "b") == 1


@pytest.mark.req("MODEL-02")
def test_a_server_that_stops_takes_the_reading_with_it(server: Server, peer: Peer, tmp_path: Path) -> None:
    write_model(tmp_path / "model", 2, "time.sleep(5)")
    ordering = threading.Thread(target=lambda: order(server))
    ordering.start()
    until(lambda: bool(readers(server)), "no process reads the log")
    (reader,) = readers(server)
    assert server.stop() == 0
    until(lambda: not Path(f"/proc/{reader}").exists(), "the log is still being read")
    ordering.join(PATIENCE_S)


def readers(server: Server) -> list[int]:
    """Processes of this server that read its log through another model."""
    found = []
    for pid in server.children():
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        found += [pid] if b"unisono.node.model_review" in command else []
    return found


@pytest.mark.req("MODEL-02", "DUR-06")
def test_events_that_have_left_the_log_are_read_from_their_archive(tmp_path: Path) -> None:
    records = history(Random(3), ["p", "q", "\u00e9"], 400)
    records[99] = msgspec.structs.replace(records[99], event=tombstone(1))
    plant(tmp_path / "data", records)
    model, watch = open_model(), ReviewWatch(pytest.fail)
    settings = Settings(data=str(tmp_path / "data"))
    told: list[ReviewProgress] = []
    whole = review_log(settings, model, told.append, watch)
    assert (whole.events, whole.partitions, whole.upto, whole.erased) == (400, 3, 400, 1)
    assert whole.no_longer > 0
    assert all(progress.of == 400 for progress in told)
    export_to(Lake.at(str(tmp_path / "lake")), tmp_path / "data")
    log = SqliteLog.open(tmp_path / "data")
    log.set_archive(str(tmp_path / "lake"))
    while log.prune_batch(390):
        pass
    log.close()
    assert review_log(settings, model, told.append, watch) == whole
    (tmp_path / "lake").rename(tmp_path / "elsewhere")
    with pytest.raises(ArchiveFailed):
        review_log(settings, model, told.append, watch)
    moved = msgspec.structs.replace(settings, archive=str(tmp_path / "elsewhere"))
    assert review_log(moved, model, told.append, watch) == whole


@pytest.mark.req("MODEL-02")
def test_counts_of_rules_outlive_a_reload(server: Server, peer: Peer, tmp_path: Path) -> None:
    def failed() -> float:
        return server.metric("unisono_rules_failed_total", rule="fail/failing")

    for _ in range(3):
        (result,) = peer.submit(item(["p"], note("fail")))
        assert result["status"] == "rejected"
    assert failed() == 3
    write_model(tmp_path / "model", 2)
    assert order(server)[0] == 200
    peer.expect("version_changed")
    assert failed() == 3
    peer.submit(item(["p"], note("fail")))
    assert failed() == 4
    loaded = server.metric("unisono_states_loaded_total")
    write_model(tmp_path / "model", 3)
    assert order(server)[0] == 200
    assert failed() == 4
    assert server.metric("unisono_states_loaded_total") >= loaded > 0
