"""One model version, one content: another one is refused, and never judges on what the former one folded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.server.harness import Server, running
from tests.behaviour.server.reloading import run_reload
from tests.forking import run
from unisono.model.load import load_model

RULES = """
from unisono.model.rules import Event, Rules, refuse

rules = Rules()

@rules.check("counted")
def below(state, event: Event):
    if state.get("count", 0) >= event.data:
        yield refuse("", f"counted {{state['count']}}")

@rules.reduce("counted")
def counted(state, event: Event) -> None:
    state["count"] = state.get("count", 0) + {step}
"""


def write(path: Path, version: int, step: int) -> Path:
    (path / "schemas").mkdir(parents=True, exist_ok=True)
    (path / "schemas" / "counted.json").write_text(json.dumps({"type": "integer"}))
    (path / "rules.py").write_text(RULES.format(step=step))
    (path / "model.toml").write_text(f'name = "c"\nmodel_version = {version}\nrules = "rules.py"\n')
    return path


def serve(data: Path, model: Path, *arguments: str) -> Any:
    return running(data, "--model", str(model), "--access-default", "allow", *arguments)


def refused(data: Path, model: Path) -> str:
    """What a server says that does not start."""
    secret = data.parent / "secret"
    secret.write_text("s" * 40)
    ended = run(
        "serve", "--data", data, "--port", "0", "--admin-port", "0",
        "--jwt-secret-file", secret, "--model", model,
    )  # fmt: skip
    assert ended.returncode == 2, ended
    return ended.stderr


def count(server: Server, times: int) -> None:
    with server.client("counter", "canonical") as peer:
        for _ in range(times):
            peer.commit(["p"], {"type": "event", "payload": {"schema": "counted", "data": 1_000}})


def counted(server: Server) -> int:
    """What the model in force has counted, from its refusal."""
    with server.client("asker", "canonical") as peer:
        event = {"type": "event", "payload": {"schema": "counted", "data": 0}}
        peer.send(
            "submit_events", {"events": [{"id": f"ask-{id(peer)}", "partitions": ["p"], "event": event}]}
        )
        (result,) = peer.expect("submit_events_result")["results"]
    return int(result["errors"][0]["message"].split()[-1])


def snapshot(server: Server) -> None:
    run("snapshot", "--data", server.data, "--partition", "p").check_returncode()


@pytest.mark.req("DUR-07", "MODEL-01")
@pytest.mark.parametrize("with_snapshot", [True, False])
def test_another_content_under_the_same_version_is_refused_at_the_start(
    tmp_path: Path, with_snapshot: bool
) -> None:
    data, model = tmp_path / "data", write(tmp_path / "model", 1, 1)
    first = load_model(model).digest
    with serve(data, model) as server:
        count(server, 3)
        if with_snapshot:
            snapshot(server)
        server.stop()
    write(model, 1, 10)
    second = load_model(model).digest
    told = refused(data, model)
    assert first[:12] in told
    assert second[:12] in told
    assert "raise model_version in model.toml" in told
    write(model, 2, 10)
    with serve(data, model) as server:
        assert counted(server) == 30
        server.stop()
    write(model, 1, 10)
    assert first[:12] in refused(data, model), "also of a version that is not in force any more"
    write(model, 1, 1)
    with serve(data, model) as server:
        assert counted(server) == 3


@pytest.mark.req("DUR-07", "MODEL-02")
def test_another_content_under_the_same_version_is_refused_by_a_reload(tmp_path: Path) -> None:
    data, model = tmp_path / "data", write(tmp_path / "model", 1, 1)
    first = load_model(model).digest
    with serve(data, model) as server:
        count(server, 2)
        write(model, 1, 10)
        told = run_reload(data)
        assert told.returncode == 1
        assert first[:12] in told.stderr
        assert load_model(model).digest[:12] in told.stderr
        assert "raise it in model.toml" in told.stderr
        assert counted(server) == 2
        write(model, 2, 10)
        assert run_reload(data).returncode == 0
        assert counted(server) == 20
        server.stop()
    # Version 1 is known to this log, with its first content: also when it would be the higher one.
    write(tmp_path / "zero", 3, 5)
    with serve(data, tmp_path / "zero") as server:
        server.stop()
    write(tmp_path / "zero", 3, 6)
    with serve(data, write(model, 2, 10)) as server:
        told = run_reload(data, "--model", str(tmp_path / "zero"))
        assert told.returncode == 1
        assert "this log was judged by under that version" in told.stderr
        assert counted(server) == 20


@pytest.mark.req("DUR-07")
def test_who_develops_a_model_may_edit_it_and_states_are_folded_anew(tmp_path: Path) -> None:
    data, model = tmp_path / "data", write(tmp_path / "model", 1, 1)
    with serve(data, model) as server:
        count(server, 3)
        snapshot(server)
        server.stop()
    write(model, 1, 10)
    with serve(data, model, "--allow-model-edits") as server:
        assert counted(server) == 30, "not 3, as the snapshot of the former content has it"
        snapshot(server)
        count(server, 1)
        log = server.log.read_text()
        server.stop()
    assert "content of model version 1 changed" in log
    with serve(data, model) as server:
        assert counted(server) == 40, "it is the one that is remembered"
        with server.peer() as peer:
            told = peer.connect("x", server.token("x"), supported_profiles=["canonical"], snapshots=True)
            assert told["model_digest"] == load_model(model).digest
            page = peer.sync(["p"])
            assert page["model_digest"] == told["model_digest"]
            (base,) = page["snapshots"]
            assert base["model_digest"] == told["model_digest"]
            assert base["state"]["data"] == {"count": 30}


@pytest.mark.req("DUR-07")
def test_without_a_model_there_is_no_digest(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--access-default", "allow") as server, server.peer() as peer:
        told = peer.connect("x", server.token("x"), supported_profiles=["compatibility"])
        assert not {"model_version", "model_digest"} & told.keys()
        assert "model_digest" not in peer.sync(["p"])
