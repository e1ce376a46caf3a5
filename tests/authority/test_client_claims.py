"""Which connection may submit for a client."""

from __future__ import annotations

import pytest

from unisono.authority.client_claims import ClientClaims


@pytest.mark.req("CONN-05")
def test_the_newest_connection_speaks_for_its_client() -> None:
    claims = ClientClaims()
    assert not claims.has("ann", 1)
    assert claims.claim("ann", 1) is None
    assert claims.claim("ann", 1) is None, "again"
    assert claims.claim("bob", 2) is None
    assert claims.claim("ann", 3) == 1
    assert [claims.has("ann", conn) for conn in (1, 2, 3)] == [False, False, True]
    assert claims.release(1) == "ann", "whose claim is given up in the cluster, too"
    assert claims.has("ann", 3), "the older one's end changes nothing"
    claims.replace(3)
    assert not claims.has("ann", 3)
    assert claims.claim("ann", 4) is None, "another node had it"
    assert claims.release(3) == "ann"
    assert claims.has("ann", 4)
    assert claims.release(4) == "ann"
    assert claims.release(4) is None
    assert not claims.has("ann", 4)
    assert claims.has("bob", 2)
