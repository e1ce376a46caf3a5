"""The loops of `tests/faults/` at full length. SOAK_ROUNDS shortens or lengthens each of them."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from tests.faults.clocks import jump_clock, require_faketime
from tests.faults.errors import fail_calls, fail_starts, require_strace
from tests.faults.network import bad_lines, clients_over_bad_lines
from tests.faults.slow import broadcast
from tests.faults.space import fill_the_disk
from tests.store.postgres.server import database, postgres

__all__ = ["database", "postgres"]

ROUNDS = os.environ.get("SOAK_ROUNDS")
CALLS = int(ROUNDS or 60)
CYCLES = int(ROUNDS or 20)
BROADCAST_BYTES = 1_000_000 * int(ROUNDS or 200)
HEALTHY = 100
MISHAPS = int(ROUNDS or 2_000)
CLIENT_RUNS = int(ROUNDS or 60)
JUMPS = int(ROUNDS or 40)

log = logging.getLogger("soak")
"""What a run came to: shown with `-o log_cli=true --log-cli-level=INFO`."""


@pytest.mark.req("DUR-02", "DUR-03", "DUR-04", "ORD-01", "ORD-05")
@pytest.mark.timeout(120 + 30 * CALLS)
@pytest.mark.parametrize("call", ["fdatasync", "pwrite64"])
def test_every_call_fails_once(tmp_path: Path, call: str) -> None:
    require_strace()
    calls = [(call, when) for when in range(1, CALLS + 1)]
    tally = fail_calls(tmp_path / "data", calls, seed=CALLS)
    assert tally.faults.total() == CALLS
    assert tally.drafts > CALLS * 4
    log.info("tally: %s", tally)


@pytest.mark.req("DUR-02", "DUR-03", "DUR-04", "ORD-01", "ORD-05")
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("call", ["fdatasync", "pwrite64"])
def test_every_call_of_a_start_fails_once(tmp_path: Path, call: str) -> None:
    require_strace()
    calls = fail_starts(tmp_path / "data", call, seed=9)
    assert calls > 0
    log.info("%s: %d calls", call, calls)


@pytest.mark.req("DUR-02", "DUR-03", "DUR-04", "ORD-01", "ORD-03", "ORD-05")
@pytest.mark.timeout(120 + 30 * CYCLES)
def test_a_disk_that_fills_again_and_again(tmp_path: Path) -> None:
    tally = fill_the_disk(tmp_path, CYCLES, seed=CYCLES)
    assert tally.faults["disk full"] == CYCLES
    log.info("tally: %s", tally)


@pytest.mark.req("BCAST-01", "BCAST-03", "BCAST-04", "LIM-05")
@pytest.mark.timeout(1_800)
def test_one_subscriber_of_many_stops_reading(tmp_path: Path) -> None:
    """The others' delays beside those of a run in which everybody reads are reported, not judged."""
    amount = {"total_bytes": BROADCAST_BYTES, "healthy": HEALTHY}
    without = broadcast(tmp_path / "without", stopped=False, **amount)
    outcome = broadcast(tmp_path / "data", stopped=True, **amount)
    log.info("without: %s", without)
    log.info("with: %s", outcome)
    assert outcome.closed_after_s is not None
    assert outcome.closed_after_s <= 10
    assert outcome.held_bytes <= 8 << 20


@pytest.mark.req("DUR-03", "ORD-01", "ORD-03", "ORD-05", "SYNC-01", "SYNC-06", "BCAST-03")
@pytest.mark.timeout(300 + MISHAPS)
def test_a_line_with_ever_more_mishaps(tmp_path: Path) -> None:
    tally = bad_lines(tmp_path / "data", MISHAPS, seed=MISHAPS)
    assert tally.faults.total() == MISHAPS
    assert tally.drafts > MISHAPS
    log.info("tally: %s", tally)


@pytest.mark.req("CLIENT-03", "CLIENT-04", "CLIENT-08", "CLIENT-13", "DUR-03", "ORD-03")
@pytest.mark.timeout(300 + 60 * CLIENT_RUNS)
def test_clients_of_the_library_over_lines_with_mishaps(tmp_path: Path) -> None:
    outcome = clients_over_bad_lines(tmp_path, CLIENT_RUNS, seed=20_000)
    assert outcome.cuts > CLIENT_RUNS
    assert outcome.kills > 0
    log.info("outcome: %s", outcome)


@pytest.mark.req("AUTH-04", "HB-02", "ENV-07", "DUR-02", "ORD-01", "SYNC-06", "BCAST-03")
@pytest.mark.timeout(300 + 30 * JUMPS)
def test_the_clock_of_a_server_jumps_again_and_again(tmp_path: Path) -> None:
    require_faketime()
    tally = jump_clock(tmp_path / "data", JUMPS, seed=JUMPS)
    assert tally.faults.total() == 2 * JUMPS
    log.info("tally: %s", tally)


@pytest.mark.req("AUTH-04", "HB-02", "ENV-07", "CONN-05", "ORD-01", "ORD-02", "SYNC-06", "BCAST-03")
@pytest.mark.timeout(300 + 30 * JUMPS)
def test_the_clock_of_a_node_jumps_again_and_again(tmp_path: Path, database: str) -> None:
    require_faketime()
    tally = jump_clock(tmp_path / "data", JUMPS, JUMPS, database)
    assert tally.faults.total() == 2 * JUMPS
    log.info("tally: %s", tally)
