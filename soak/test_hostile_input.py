"""Clients that mean harm, or are very many, for long. SOAK_ROUNDS percent of the numbers that are named here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.behaviour.server.crowds import memory_kib
from tests.behaviour.server.harness import Server, running
from tests.behaviour.server.mutations import MESSAGES_PER_SEED, play
from tests.behaviour.server.tenants import play as play_tenants
from tests.behaviour.server.test_crowds import load, slow_handshakes

PERCENT = int(os.environ.get("SOAK_ROUNDS", "100"))


@pytest.fixture(scope="session", autouse=True)
def _quick_starts() -> None:
    """In place of the one that prepares Spark, which nothing here needs."""


def log_kib(server: Server) -> int:
    return (server.data / "log.db").stat().st_size >> 10


@pytest.mark.req("ENV-01", "ENV-02", "ERR-01", "ERR-03", "LIM-05")
@pytest.mark.timeout(3600)
def test_damaged_messages_get_defined_answers_and_leave_nothing(tmp_path: Path) -> None:
    """100,000 of them, after a fifth of that to warm up."""
    seeds = 1_000 * PERCENT // MESSAGES_PER_SEED
    warm_up = max(1, seeds // 5)
    with running(tmp_path / "data", "--model", "open", "--access-default", "allow") as server:
        play(server, range(warm_up))
        before, log_before = memory_kib(server), log_kib(server)
        play(server, range(warm_up, seeds + warm_up))
        after, grown = memory_kib(server), log_kib(server) - log_before
        # Some damaged messages are still valid and are committed, and SQLite caches what was written.
        assert after <= before * 1.1 + grown, f"{before} KiB after the warm-up, {after} KiB at the end"


@pytest.mark.req("LIM-05", "LIM-07", "CONN-10")
@pytest.mark.timeout(1200)
def test_slow_handshakes_end_and_hold_up_nobody(tmp_path: Path) -> None:
    """2,000 of them at once."""
    slow_handshakes(tmp_path / "data", 20 * PERCENT, handshake_s=10, within=0.1)


@pytest.mark.req("LIM-05")
@pytest.mark.timeout(3600)
def test_connections_that_are_held_and_churned_leave_nothing(tmp_path: Path) -> None:
    """10,000 held at once, and 100,000 that come and go. The limit of open files must be above 10,000."""
    load(tmp_path / "data", held=100 * PERCENT, churned=1_000 * PERCENT, within=0.1)


@pytest.mark.req("AUTHZ-01", "AUTHZ-02", "AUTHZ-06", "BCAST-01", "SYNC-01")
@pytest.mark.timeout(3600)
def test_no_tenant_sees_the_canary_of_another(tmp_path: Path) -> None:
    """1,000,000 operations of 50 tenants."""
    with running(tmp_path / "data") as server:
        play_tenants(server, tenants=50, operations=10_000 * PERCENT, batch=100, seed=2)
