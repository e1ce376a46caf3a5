"""Who speaks for a client."""

from __future__ import annotations

import pytest

from unisono.authority.client_claims import ClientClaims


@pytest.mark.req("CONN-05")
def test_the_newest_connection_speaks_for_its_client() -> None:
    owners = ClientClaims()
    assert not owners.has("ann", 1)
    assert owners.claim("ann", 1) is None
    assert owners.claim("ann", 1) is None, "again"
    assert owners.claim("bob", 2) is None
    assert owners.claim("ann", 3) == 1
    assert [owners.has("ann", conn) for conn in (1, 2, 3)] == [False, False, True]
    assert owners.release(1) == "ann", "whose claim is given up in the cluster, too"
    assert owners.has("ann", 3), "the older one's end changes nothing"
    owners.replaced(3)
    assert not owners.has("ann", 3)
    assert owners.claim("ann", 4) is None, "another node had it"
    assert owners.release(3) == "ann"
    assert owners.has("ann", 4)
    assert owners.release(4) == "ann"
    assert owners.release(4) is None
    assert not owners.has("ann", 4)
    assert owners.has("bob", 2)
