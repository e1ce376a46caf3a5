"""A new model without a restart: who is told, what is refused, and what stays as it was."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.behaviour.server.harness import Peer, Server, item, running, set_event
from tests.behaviour.server.reloading import Modelled, announced_version, note, post, run_reload, write_model
from tests.waiting import PATIENCE_S, until
from unisono.ipc.files import ADMIN_FILE


@pytest.fixture(scope="module")
def modelled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Modelled]:
    directory = tmp_path_factory.mktemp("modelled")
    model = directory / "model"
    write_model(model, 1)
    options = ("--access-default", "allow", "--fronts", "2", "--model", str(model))
    with running(directory / "data", *options) as started:
        yield Modelled(started, model)


# -- a new version -------------------------------------------------------------------------------------------


@pytest.mark.req("MODEL-01", "SYNC-08", "CONN-04")
def test_the_version_comes_with_the_model(modelled: Modelled, who: str) -> None:
    for profile in ("canonical", "compatibility"):
        assert announced_version(modelled.server, who, profile) == modelled.version


@pytest.mark.req("MODEL-01", "MODEL-02", "SYNC-08")
def test_every_active_canonical_connection_is_told(modelled: Modelled, part: str) -> None:
    """On either front; connections of the other profile and those not connected yet are not."""
    old = modelled.version
    with contextlib.ExitStack() as stack:
        canonical = [stack.enter_context(modelled.client(f"{part}-{n}")) for n in range(10)]
        tree = [stack.enter_context(modelled.server.client(f"{part}-tree-{n}")) for n in range(4)]
        idle = stack.enter_context(modelled.server.peer())
        fronts = [modelled.server.metric("unisono_connections", process=f"front {n}") for n in (0, 1)]
        assert min(fronts) > 0
        canonical[0].subscribe(part)
        new = modelled.version = old + 1
        modelled.write(new)
        done = modelled.reload()
        assert done.returncode == 0, done.stderr
        assert f"model_version {old} → {new}" in done.stdout
        for peer in canonical:
            message = peer.receive()
            assert message["type"] == "version_changed"
            assert message["payload"] == {"old_model_version": old, "new_model_version": new}
        for peer in (*tree, idle):
            peer.expect_quiet(0.02)
        # The connections go on as they were, and every page tells the new version.
        committed_id = canonical[1].commit([part], note())
        assert canonical[0].expect("event_broadcast")["committed_id"] == committed_id
        for peer in (canonical[0], tree[0]):
            assert peer.sync([part])["model_version"] == new
        for profile in ("canonical", "compatibility"):
            assert announced_version(modelled.server, f"{part}-later", profile) == new


@pytest.mark.req("MODEL-01", "MODEL-02", "VAL-02")
def test_the_new_model_judges_from_then_on(modelled: Modelled, who: str, part: str) -> None:
    """Its schemas and its rules, over state folded anew from the whole log."""
    modelled.raise_version()
    with modelled.client(who) as peer:
        assert peer.commit([part], note("x" * 60))
        assert peer.commit([part], note())
        modelled.raise_version(longest=50, most=3)
        peer.expect("version_changed")
        long, third, fourth = peer.submit(
            item([part], note("x" * 51)), item([part], note()), item([part], note())
        )
        assert long["errors"][0]["field"] == "event.payload.data"
        assert third["status"] == "committed"  # two are counted from before, with the new reducer
        assert fourth["errors"] == [{"field": "event.payload.data", "message": "there are notes enough"}]
        modelled.raise_version()
        peer.expect("version_changed")
        assert peer.commit([part], note("x" * 60))


@pytest.mark.req("MODEL-02", "ORD-03", "ORD-04", "ORD-05")
def test_a_retry_of_what_the_new_model_would_refuse_is_answered_from_the_log(
    modelled: Modelled, who: str, part: str
) -> None:
    modelled.raise_version()
    with modelled.client(who) as peer:
        sent = item([part], note("x" * 90))
        (first,) = peer.submit(sent)
        assert first["status"] == "committed"
        modelled.raise_version(longest=10)
        peer.expect("version_changed")
        new, again = peer.submit(item([part], note("x" * 90)), sent)
        assert new["reason"] == "validation_failed"
        assert again == first
        peer.send("submit_event", sent)
        assert peer.expect("event_committed")["committed_id"] == first["committed_id"]
        (conflict,) = peer.submit(sent | {"event": note("short")})
        assert [error["field"] for error in conflict["errors"]] == ["event"]
        assert len(peer.history([part])) == 1


@pytest.mark.req("MODEL-02")
def test_requests_around_a_change_of_model_are_all_answered(modelled: Modelled, who: str, part: str) -> None:
    """Each result is of the model in force at its place in the stream; version_changed stands between."""
    modelled.raise_version()
    modelled.version += 1
    modelled.write(modelled.version, longest=10)
    with modelled.client(who) as peer:
        command = [sys.executable, "-m", "unisono", "model", "reload", "--data", str(modelled.server.data)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running_command:
            statuses: list[str] = []
            changed_at: int | None = None
            while changed_at is None or len(statuses) < changed_at + 20:
                peer.send("submit_events", {"events": [item([part], note("x" * 20))]})
                message = peer.receive()
                if message["type"] == "version_changed":
                    changed_at = len(statuses)
                    message = peer.receive()
                assert message["type"] == "submit_events_result"
                statuses.append(message["payload"]["results"][0]["status"])
            assert running_command.wait(PATIENCE_S) == 0
        assert changed_at > 0
        assert statuses == ["committed"] * changed_at + ["rejected"] * (len(statuses) - changed_at)


@pytest.mark.req("MODEL-02")
def test_another_directory_can_be_given(modelled: Modelled, tmp_path: Path, who: str) -> None:
    modelled.version += 1
    write_model(tmp_path / "elsewhere", modelled.version, longest=5)
    with modelled.client(who) as peer:
        done = modelled.reload("--model", str(tmp_path / "elsewhere"))
        assert done.returncode == 0, done.stderr
        assert f"model_version {modelled.version - 1} → {modelled.version}" in done.stdout
        assert peer.expect("version_changed")["new_model_version"] == modelled.version
        (result,) = peer.submit(item(["p"], note("x" * 6)))
        assert result["status"] == "rejected"
    modelled.raise_version()


@pytest.mark.req("MODEL-02")
def test_sighup_does_the_same(modelled: Modelled, who: str) -> None:
    old, modelled.version = modelled.version, modelled.version + 1
    modelled.write(modelled.version)
    with modelled.client(who) as peer, modelled.server.client(f"{who}-tree") as tree:
        modelled.server.process.send_signal(signal.SIGHUP)
        assert peer.expect("version_changed") == {
            "old_model_version": old,
            "new_model_version": modelled.version,
        }
        tree.expect_quiet(0.02)
        assert peer.sync(["p"])["model_version"] == modelled.version
        # A second one, with nothing new, is refused in the log and changes nothing.
        refusals = modelled.server.log.read_text().count("reload refused")
        modelled.server.process.send_signal(signal.SIGHUP)
        until(
            lambda: modelled.server.log.read_text().count("reload refused") > refusals,
            "the second one is not refused",
        )
        peer.expect_quiet(0.02)
        assert peer.sync(["p"])["model_version"] == modelled.version


# -- what is refused -----------------------------------------------------------------------------------------


def break_schema(path: Path) -> str:
    (path / "schemas" / "note.json").write_text('{"type": "strin"}')
    return "schemas/note.json"


def break_json(path: Path) -> str:
    (path / "schemas" / "note.json").write_text('{"type": ')
    return "schemas/note.json"


def break_rules(path: Path) -> str:
    (path / "rules.py").write_text("rules = no_such_name\n")
    return "rules.py"


def break_manifest(path: Path) -> str:
    (path / "model.toml").write_text("model_version = \n")
    return "model.toml"


def lose_schema(path: Path) -> str:
    (path / "schemas" / "note.json").unlink()
    return "note"


@pytest.mark.req("MODEL-02")
@pytest.mark.parametrize("spoil", [break_schema, break_json, break_rules, break_manifest, lose_schema])
def test_a_broken_model_is_refused_and_the_old_one_stays(
    modelled: Modelled, who: str, part: str, spoil: Callable[[Path], str]
) -> None:
    modelled.raise_version(longest=40)
    with modelled.client(who) as peer:
        modelled.write(modelled.version + 1)
        named = spoil(modelled.path)
        status, told = modelled.order()
        assert status == 409
        assert named in told["error"]
        expect_unchanged(modelled, peer, part)


@pytest.mark.req("MODEL-02")
@pytest.mark.parametrize("step", [0, -1])
def test_the_same_or_a_lower_version_is_refused(modelled: Modelled, who: str, part: str, step: int) -> None:
    modelled.raise_version(longest=40)
    with modelled.client(who) as peer:
        modelled.write(modelled.version + step)
        status, told = modelled.order()
        assert status == 409
        assert f"model_version {modelled.version + step} is not above {modelled.version}" in told["error"]
        expect_unchanged(modelled, peer, part)


@pytest.mark.req("MODEL-02")
def test_the_command_says_why_a_model_was_refused(modelled: Modelled, who: str, part: str) -> None:
    modelled.raise_version(longest=40)
    with modelled.client(who) as peer:
        refused = modelled.reload()
        assert refused.returncode == 1
        assert f"model_version {modelled.version} is not above {modelled.version}" in refused.stderr
        modelled.write(modelled.version + 1)
        named = [break_rules(modelled.path), break_schema(modelled.path)]
        refused = modelled.reload()
        assert refused.returncode == 1
        assert all(name in refused.stderr for name in named)  # everything that is wrong, at once
        assert "Traceback" not in refused.stderr
        expect_unchanged(modelled, peer, part)


def expect_unchanged(modelled: Modelled, peer: Peer, part: str) -> None:
    """The model with notes of 40 is in force and nobody was told anything."""
    peer.expect_quiet(0.05)
    good, bad = peer.submit(item([part], note("x" * 40)), item([part], note("x" * 41)))
    assert (good["status"], bad["status"]) == ("committed", "rejected")
    assert peer.sync([part])["model_version"] == modelled.version
    assert announced_version(modelled.server, f"{part}-later") == modelled.version


@pytest.mark.req("MODEL-02")
def test_without_a_versioned_model_there_is_nothing_to_reload(server: Server, who: str) -> None:
    with server.client(who, "canonical") as peer:
        refused = run_reload(server.data)
        assert refused.returncode == 1
        assert "--model DIR" in refused.stderr
        peer.expect_quiet(0.02)
        assert "model_version" not in peer.sync(["p"])


@pytest.mark.req("MODEL-02")
def test_without_a_server_the_order_says_so(tmp_path: Path) -> None:
    refused = run_reload(tmp_path)
    assert refused.returncode == 1
    assert f"no server runs on {tmp_path}" in refused.stderr


# -- who may order it ----------------------------------------------------------------------------------------


@pytest.mark.req("MODEL-02", "AUTH-08")
def test_the_order_needs_the_admin_token(modelled: Modelled, who: str, part: str) -> None:
    admin_file = modelled.server.data / ADMIN_FILE
    token = json.loads(admin_file.read_text())["token"]
    assert admin_file.stat().st_mode & 0o077 == 0
    modelled.raise_version(longest=40)
    modelled.write(modelled.version + 1)
    attempts = [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Bearer {token}x"},
        {"Authorization": "Bearer \xff"},  # no UTF-8
        {"Authorization": f"Bearer {modelled.server.token(who)}"},  # a client's own is no admin token
    ]
    with modelled.client(who) as peer:
        for headers in attempts:
            for path in ("/orders/reload", "/orders/snapshot?partition=p"):
                status, body = post(modelled.server, path, **headers)
                assert status == 401
                assert token not in json.dumps(body)
        expect_unchanged(modelled, peer, part)
        status, body = post(modelled.server, "/orders/reload", Authorization=f"Bearer {token}")
        assert (status, body["new_model_version"]) == (200, modelled.version + 1)
        modelled.version += 1
        assert peer.expect("version_changed")["new_model_version"] == modelled.version
        status, body = post(modelled.server, "/orders/reload", Authorization=f"Bearer {token}")
        assert status == 409
        assert "not above" in body["error"]
    assert token not in modelled.server.log.read_text()


@pytest.mark.req("MODEL-01", "MODEL-02")
def test_a_restart_takes_what_is_in_the_directory(tmp_path: Path, who: str, part: str) -> None:
    """State of events that only the old model understood is folded by the new one, skipping what it must."""
    write_model(tmp_path / "model", 1, most=2)
    options = ("--access-default", "allow", "--model", str(tmp_path / "model"))
    with running(tmp_path / "data", *options) as server:
        with server.client(who, "canonical") as peer:
            assert peer.commit([part], note())
        with server.client(who, "compatibility") as peer:
            assert peer.commit([part], set_event("title", 1))
        server.stop()
        assert not (tmp_path / "data" / ADMIN_FILE).exists()
        write_model(tmp_path / "model", 2, most=2)
        server.start()
        assert announced_version(server, who) == 2
        with server.client(who, "canonical") as peer:
            results = peer.submit(item([part], note()), item([part], note()))
            assert [result["status"] for result in results] == ["committed", "rejected"]
        assert (tmp_path / "data" / ADMIN_FILE).stat().st_mode & 0o077 == 0
