"""`unisono model export`: one JSON object that a client in JavaScript takes as its model."""

from __future__ import annotations

import json
from pathlib import Path

from tests.forking import run
from unisono.model.load import load_model
from unisono.samples import sample_model


def test_what_a_client_needs_is_printed() -> None:
    done = run("model", "export", sample_model("board"))
    assert done.returncode == 0
    assert done.stderr == ""
    reducers = json.loads((sample_model("board") / "reducers.json").read_text())
    assert json.loads(done.stdout) == {
        "name": "board",
        "version": 1,
        "digest": load_model(sample_model("board")).digest,
        "reducers": reducers,
    }


def test_what_is_reduced_in_python_is_named() -> None:
    done = run("model", "export", sample_model())
    assert json.loads(done.stdout)["reducers"] == {}
    assert "note.added: is reduced in Python alone" in done.stderr


def test_a_broken_model_is_an_error(tmp_path: Path) -> None:
    done = run("model", "export", tmp_path)
    assert done.returncode == 1
    assert "model.toml" in done.stderr
