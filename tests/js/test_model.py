"""What events mean, and how a client syncs, is the same in TypeScript as in Python: both take random histories."""

from __future__ import annotations

import json
import subprocess
import typing
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.js.declared_histories import declared_histories
from tests.js.node import node
from tests.js.sync_histories import sync_histories
from tests.js.tree_histories import histories
from unisono.client.sync.inputs_effects import Effect

TREE_HISTORIES = 20_000
DECLARED_HISTORIES = 5_000
SYNC_HISTORIES = 300


def compare(script: Path, lines: Iterable[bytes]) -> dict[str, int]:
    """Feed histories to a script while they are made; gives what it counted, and fails where it differs."""
    process = subprocess.Popen([node(), str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    for line in lines:
        process.stdin.write(line)
    process.stdin.close()
    printed = process.stdout.read().decode()
    process.stdout.close()
    assert process.wait() == 0, printed
    counted: dict[str, int] = json.loads(printed.splitlines()[-1])
    assert counted["differences"] == 0, printed
    return counted


@pytest.mark.req("TREE-11", "CLIENT-21", "CLIENT-22")
def test_tree_actions_mean_the_same(built: Path) -> None:
    counted = compare(built / "packages/client/test/tree-vectors.mjs", histories(TREE_HISTORIES))
    assert counted["histories"] == TREE_HISTORIES
    assert counted["events"] - counted["refused"] > TREE_HISTORIES
    assert counted["refused"] > TREE_HISTORIES
    assert counted["undone"] > TREE_HISTORIES / 4


@pytest.mark.req("VAL-05", "CLIENT-23")
def test_declarative_reducers_mean_the_same(built: Path) -> None:
    lines = declared_histories(DECLARED_HISTORIES)
    counted = compare(built / "packages/client/test/declared-vectors.mjs", lines)
    assert counted["histories"] == DECLARED_HISTORIES
    assert min(counted["applied"], counted["refused"], counted["failed"]) > DECLARED_HISTORIES / 2, counted
    assert counted["undone"] > DECLARED_HISTORIES / 10, counted


@pytest.mark.req("CLIENT-06", "CLIENT-07", "CLIENT-11", "CLIENT-12", "CLIENT-14", "CLIENT-15")
def test_the_sync_state_is_the_same(built: Path) -> None:
    counted = compare(built / "packages/client/test/sync-vectors.mjs", sync_histories(SYNC_HISTORIES))
    assert counted["histories"] == SYNC_HISTORIES
    # All but NoteAuthor, which only a client has that asks for the extension `identity`.
    assert counted["kinds"] == len(typing.get_args(Effect)) - 1
