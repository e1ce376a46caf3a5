"""Acknowledged means on disk, whatever happens to the processes or to the disk (DUR-*)."""

from __future__ import annotations

import resource
from pathlib import Path

import apsw
import pytest

from tests.server.harness import Closed, Peer, Server, item, running, set_event, tree_event
from tests.server.killing import TARGETS, expect_nothing_left, run_rounds
from unisono.store.checking import check_directory
from unisono.store.sqlite import SqliteReader
from unisono.store.sqlite_files import LOG_FILE
from unisono.store.statements import load_queries

ROUNDS = 30

FILE_BYTES_MAX = 256 * 1024
"""Room for the schema and some dozens of commits."""


@pytest.mark.req("DUR-02", "DUR-03", "ORD-01", "ORD-02", "ORD-03", "ORD-05", "BCAST-03")
def test_kill_minus_nine_in_a_loop_under_eight_writers(tmp_path: Path) -> None:
    tally = run_rounds(tmp_path / "data", ROUNDS, seed=1)
    assert min(tally.kills[target] for target in TARGETS) == ROUNDS // len(TARGETS)
    assert tally.drafts > ROUNDS * 8
    assert tally.recovered > 0, (
        "no kill fell between persist and reply: the load is too light to show anything"
    )
