"""`unisono model new`: what it makes is sound, and a server takes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.behaviour.server.harness import running
from tests.commands import unisono
from unisono.samples import SAMPLES


@pytest.mark.parametrize("like", SAMPLES)
def test_a_new_model_is_sound(tmp_path: Path, like: str) -> None:
    made = unisono("model", "new", str(tmp_path / "mine"), "--like", like)
    assert made.exit_code == 0, made.output
    checked = unisono("model", "check", str(tmp_path / "mine"))
    assert checked.exit_code == 0, checked.output
    assert "model 'mine', version 1" in checked.output
    assert ", 0 refused" in checked.output


def test_a_server_judges_by_it(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    made = unisono("model", "new", str(tmp_path / "tasks"))
    assert made.exit_code == 0, made.output
    task = {"type": "event", "payload": {"schema": "task.added", "data": {"id": "t1", "title": "milk"}}}
    with (
        running(tmp_path / "data", "--access-default", "allow", "--model", str(tmp_path / "tasks")) as server,
        server.client("ann", "canonical") as ann,
    ):
        assert ann.commit(["list"], task) == 1
        (result,) = ann.submit({"id": "again", "partitions": ["list"], "event": task})
        assert result["status"] == "rejected"
        assert "already a task" in json.dumps(result)


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    refused = unisono("model", "new", str(tmp_path))
    assert refused.exit_code == 1
    assert "not empty" in refused.output
    assert unisono("model", "new", str(tmp_path / "x"), "--name", 'a"b').exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    unknown = unisono("model", "new", str(tmp_path / "x"), "--like", "outlin")
    assert unknown.exit_code == 2
    assert "'outline'" in unknown.output
