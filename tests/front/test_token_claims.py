"""What the claims of a token must be, and what they grant."""

from __future__ import annotations

import jwt
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.front.tokens import (
    NOW_S,
    SECRET,
    hs256,
    refusal,
    unusable,
    verifier,
    verify,
)
from unisono.front.auth.sources import SharedSecret
from unisono.front.auth.verify import Identity, Verifier, sign_token


@pytest.mark.req("AUTH-03")
def test_client_id_must_be_the_one_the_client_says_it_is() -> None:
    assert verify(hs256(client_id="bob"), client_id="bob").client_id == "bob"
    assert "another client_id" in refusal(hs256(), client_id="bob")
    assert "another client_id" in refusal(hs256(), client_id="Alice")


@pytest.mark.req("AUTH-03")
@pytest.mark.parametrize("client_id", [..., None, "", 7, True, ["alice"], {"alice": 1}])
def test_client_id_must_be_a_non_empty_string(client_id: object) -> None:
    for claimed in ("alice", ""):
        assert "non-empty string" in refusal(hs256(client_id=client_id), client_id=claimed)


@pytest.mark.req("AUTH-03")
@pytest.mark.parametrize("client_id", ["x", "x" * 256, "é" * 128, "\0", "a\0b\x01c", "\U0001f600" * 64])
def test_client_id_has_up_to_256_bytes(client_id: str) -> None:
    assert verify(hs256(client_id=client_id), client_id=client_id).client_id == client_id


@pytest.mark.req("AUTH-03")
@pytest.mark.parametrize("client_id", ["x" * 257, "é" * 128 + "x", "x" * 8000, "\U0001f600" * 65])
def test_a_longer_client_id_is_refused(client_id: str) -> None:
    assert "more than 256 bytes" in refusal(hs256(client_id=client_id), client_id=client_id)


@pytest.mark.req("AUTH-03")
def test_a_client_id_that_is_not_unicode_is_refused() -> None:
    payload = b'{"client_id":"\\ud800","exp":%d}' % (NOW_S + 60)
    token = jwt.PyJWS().encode(payload, SECRET, algorithm="HS256")
    assert refusal(token, client_id="\ud800")
    assert refusal(token, client_id="\ufffd")


@pytest.mark.req("AUTH-04")
@pytest.mark.parametrize("exp", [..., None, "1700000060", True, [], {}, 10**400, float("nan"), float("inf")])
def test_exp_is_required_and_a_finite_number(exp: object) -> None:
    assert refusal(hs256(exp=exp))


@pytest.mark.req("AUTH-04", "AUTH-07")
def test_exp_ends_a_token_after_the_leeway() -> None:
    strict, lenient = verifier(), Verifier(SharedSecret(SECRET), leeway_s=5)
    assert verify(hs256(exp=NOW_S + 0.5), strict).expires_at_s == NOW_S + 0.5
    assert "expired" in refusal(hs256(exp=NOW_S), strict)
    assert verify(hs256(exp=NOW_S - 4.9), lenient).expires_at_s == NOW_S - 4.9
    assert "expired" in refusal(hs256(exp=NOW_S - 5), lenient)
    assert "expired" in refusal(hs256(exp=-1), lenient)


@pytest.mark.req("AUTH-07")
def test_a_token_from_the_future_waits_for_its_time_but_for_ten_seconds() -> None:
    careful, lenient = Verifier(SharedSecret(SECRET), leeway_s=5), Verifier(SharedSecret(SECRET), leeway_s=20)
    for using in (verifier(), careful):
        assert verify(hs256(nbf=NOW_S + 10), using)
        assert "nbf" in refusal(hs256(nbf=NOW_S + 10.5), using)
    assert verify(hs256(nbf=NOW_S + 20), lenient)
    assert "nbf" in refusal(hs256(nbf=NOW_S + 21), lenient)
    strange: list[object] = ["1", None, True, {}]
    for value in strange:
        assert "nbf" in refusal(hs256(nbf=value))


@pytest.mark.req("AUTH-07", "AUTH-01")
@pytest.mark.parametrize("iat", [..., NOW_S + 1, NOW_S + 10**9, 0, -1, "yesterday", None])
def test_when_a_token_was_issued_is_not_judged(iat: object) -> None:
    assert verify(hs256(iat=iat)).client_id == "alice"


@pytest.mark.req("AUTH-07")
def test_the_leeway_is_small_by_default_and_never_negative() -> None:
    assert 0 <= Verifier(SharedSecret(SECRET)).leeway_s <= 10
    for leeway_s in (-1.0, float("nan"), float("inf")):
        assert "leeway" in unusable(lambda: Verifier(SharedSecret(SECRET), leeway_s=leeway_s))  # noqa: B023


@pytest.mark.req("AUTH-07")
def test_the_issuer_is_checked_where_configured() -> None:
    using = verifier(issuer="https://id.example")
    assert verify(hs256(iss="https://id.example"), using)
    for issuer in (..., None, "https://id.example/", ["https://id.example"], 7):
        assert "iss" in refusal(hs256(iss=issuer), using)
    assert verify(hs256(iss="anyone"))


@pytest.mark.req("AUTH-07")
def test_the_audience_is_checked_where_configured() -> None:
    using = verifier(audience="unisono")
    assert verify(hs256(aud="unisono"), using)
    assert verify(hs256(aud=["other", "unisono"]), using)
    for audience in (..., None, "other", [], ["other"], {"unisono": 1}, "unisono2", [["unisono"]]):
        assert "aud" in refusal(hs256(aud=audience), using)
    assert verify(hs256(aud="other"))


@pytest.mark.req("AUTHZ-01")
def test_scope_claims_are_read_and_normalised() -> None:
    decomposed, composed = "cafe\u0301", "caf\u00e9"
    token = hs256(allowed_partitions=["p", decomposed], allowed_partition_prefixes=[f"{decomposed}/"])
    assert verify(token) == Identity(
        "alice", NOW_S + 60, frozenset({"p", composed}), (f"{composed}/",), has_scope=True
    )


@pytest.mark.req("AUTHZ-01", "LIM-07")
@pytest.mark.parametrize("claim", ["allowed_partitions", "allowed_partition_prefixes"])
def test_what_no_partition_is_called_grants_nothing_and_costs_nothing(claim: str) -> None:
    payload = msgspec.json.encode(
        {"client_id": "alice", "exp": NOW_S + 60, claim: ["\u0315\u0300" * 2800, "x" * 129, "p"]}
    )
    identity = verify(jwt.PyJWS().encode(payload, SECRET, algorithm="HS256"))
    assert identity.has_scope
    assert {*identity.partitions, *identity.prefixes} == {"p"}


@pytest.mark.req("AUTHZ-01", "AUTHZ-02")
def test_an_empty_scope_claim_is_a_scope() -> None:
    assert verify(hs256(allowed_partitions=[])).has_scope
    assert verify(hs256(allowed_partition_prefixes=[])).has_scope
    assert not verify(hs256()).has_scope


@pytest.mark.req("AUTHZ-01")
@pytest.mark.parametrize("claim", ["allowed_partitions", "allowed_partition_prefixes"])
@pytest.mark.parametrize("value", [None, "p", 7, {"p": 1}, ["p", 7], [None], [["p"]], False])
def test_a_scope_claim_must_be_an_array_of_strings(claim: str, value: object) -> None:
    assert claim in refusal(hs256(**{claim: value}))


@pytest.mark.req("AUTH-01", "AUTHZ-01")
@settings(max_examples=50)
@given(
    client_id=st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
    names=st.lists(st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), max_size=8), max_size=4),
)
def test_what_is_signed_is_what_is_read(client_id: str, names: list[str]) -> None:
    token = sign_token(
        SECRET, client_id, partitions=names, ttl_s=1, now_s=NOW_S, issuer="i", audience="a", algorithm="HS512"
    )
    identity = verify(token, verifier(issuer="i", audience="a", algorithms=["HS512"]), client_id)
    assert (identity.client_id, identity.has_scope, identity.prefixes) == (client_id, True, ())
    assert len(identity.partitions) <= len(names)
