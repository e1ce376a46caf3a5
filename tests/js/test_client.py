"""The tests of the JavaScript client that are written in JavaScript."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.js.node import run
from tests.js.server_control import ControlledServer, controlled
from unisono.model.load import load_model
from unisono.samples import sample_model

NodeTests = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.req("CLIENT-03", "CLIENT-04", "CLIENT-08", "CLIENT-13")
def test_against_a_real_server(node_tests: NodeTests) -> None:
    node_tests("packages/client/test/client.test.mjs")


@pytest.mark.req("EXT-05", "EXT-06", "EXT-07")
def test_presence(node_tests: NodeTests) -> None:
    node_tests("packages/client/test/presence.test.mjs")


@pytest.mark.req("CLIENT-08", "CLIENT-16", "AUTH-04", "CONN-05")
def test_renewal(node_tests: NodeTests) -> None:
    node_tests("packages/client/test/renewal.test.mjs")


@pytest.mark.req("CLIENT-17", "EXT-10")
def test_transactions(node_tests: NodeTests) -> None:
    node_tests("packages/client/test/transaction.test.mjs")


@pytest.mark.req("CLIENT-20", "CLIENT-21", "CLIENT-22")
def test_undo(node_tests: NodeTests) -> None:
    node_tests("packages/client/test/undo.test.mjs")


@pytest.mark.req("EXT-03", "EXT-04", "EXT-20", "EXT-23")
def test_history(node_tests: NodeTests) -> None:
    node_tests("packages/client/test/history.test.mjs")


@pytest.mark.req("CLIENT-01", "CLIENT-05", "CLIENT-12")
def test_stores(node_tests: NodeTests) -> None:
    node_tests("packages/client/test/stores.test.mjs")


@pytest.mark.req("CLIENT-02", "CLIENT-10", "CLIENT-23")
def test_events_of_a_model(built: Path, tmp_path: Path) -> None:
    model = sample_model("board")
    with controlled(tmp_path / "data", "--model", str(model), "--access-default", "allow") as (_, control):
        run(
            "--test",
            str(built / "packages/client/test/board.test.mjs"),
            UNISONO_CONTROL=control,
            UNISONO_REDUCERS=str(model / "reducers.json"),
            UNISONO_DIGEST=load_model(model).digest,
        )


@pytest.mark.req("CLIENT-08", "CLIENT-09")
def test_connection(built: Path) -> None:
    run("--test", str(built / "packages/client/test/connection.test.mjs"))


def test_a_tanstack_collection(node_tests: NodeTests) -> None:
    node_tests("packages/tanstack-db/test/collection.test.mjs")


def test_extensions(built: Path) -> None:
    run("--test", str(built / "packages/client/test/extension.test.mjs"))


def test_the_examples_do_what_the_page_says(
    built: Path, control: tuple[ControlledServer, str], tmp_path: Path
) -> None:
    owner = control[0].server
    part = f"garden-{tmp_path.name}"
    example = str(built / "examples/garden.mjs")
    done = run(example, owner.url, owner.token("ann"), owner.token("bob"), part, cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["{ title: 'Beans' }", "in the one order at true"]
    assert "1 draft waits" in lines
    assert lines[-1].startswith("bob sees") or "bob sees [ 'beds', 'beans' ]" in lines
    by_hand = str(built / "examples/by-hand.mjs")
    said = run(by_hand, owner.url, "zoe", owner.token("zoe"), part, cwd=tmp_path).stdout.splitlines()
    assert [line.split()[-1] for line in said] == ["treePush", "treePush", "treePush", "committed"]
