"""The tests of the JavaScript client that are written in JavaScript."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.js.node import run
from tests.js.server_control import controlled
from unisono.model.load import load_model
from unisono.samples import board_model

NodeTests = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.req("CLIENT-03", "CLIENT-04", "CLIENT-08", "CLIENT-13")
def test_against_a_real_server(node_tests: NodeTests) -> None:
    node_tests("packages/client/test/client.test.mjs")


@pytest.mark.req("CLIENT-01", "CLIENT-05", "CLIENT-12")
def test_stores(node_tests: NodeTests) -> None:
    node_tests("packages/client/test/stores.test.mjs")


@pytest.mark.req("CLIENT-02", "CLIENT-10")
def test_events_of_a_model(built: Path, tmp_path: Path) -> None:
    model = board_model()
    with controlled(tmp_path / "data", "--model", str(model), "--access-default", "allow") as (_, control):
        run(
            "--test",
            str(built / "packages/client/test/board.test.mjs"),
            UNISONO_CONTROL=control,
            UNISONO_REDUCERS=str(model / "reducers.json"),
            UNISONO_DIGEST=load_model(model).digest,
        )
