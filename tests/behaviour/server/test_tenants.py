"""Fifty tenants with canaries, some thousand operations; soak/test_hostile_input.py makes a million of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.behaviour.server.harness import running
from tests.behaviour.server.tenants import play


@pytest.mark.req("AUTHZ-01", "AUTHZ-02", "AUTHZ-06", "BCAST-01", "SYNC-01")
def test_no_tenant_sees_the_canary_of_another(tmp_path: Path) -> None:
    with running(tmp_path / "data") as server:
        tenants = play(server, tenants=50, operations=5_000, batch=10, seed=1)
    assert sum(tenant.committed for tenant in tenants) > 2_000
    assert sum(tenant.refusals for tenant in tenants) > 100
