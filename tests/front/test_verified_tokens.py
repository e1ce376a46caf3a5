"""Tokens that were verified before: what is checked again, and how many are remembered."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.front.tokens import (
    NOW_S,
    hs256,
    jwk,
    key_set,
    refusal,
    signed,
    verifier,
    verify,
)
from unisono.front.auth import verified_tokens
from unisono.front.auth.sources import JwksFile
from unisono.front.auth.verified_tokens import VerifiedTokens


@pytest.mark.req("AUTH-01")
def test_a_token_is_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    using, token = verifier(), hs256(jti="t1")
    first = verify(token, using)
    monkeypatch.setattr(using, "_verified", None)
    assert verify(token, using, now_s=NOW_S + 59) is first
    assert first.jti == "t1", "by which it can be revoked"


@pytest.mark.req("AUTH-04", "AUTH-07")
def test_its_times_are_checked_at_each_connect() -> None:
    using, token = verifier(), hs256(nbf=NOW_S)
    verify(token, using)
    assert "expired" in refusal(token, using, now_s=NOW_S + 60)
    assert "nbf" in refusal(token, using, now_s=NOW_S - 11), "the clock was set back"
    verify(token, using, now_s=NOW_S - 10)


@pytest.mark.req("AUTH-01", "AUTH-03", "AUTH-09")
def test_another_client_or_another_text_is_judged_anew() -> None:
    using, token = verifier(), hs256()
    verify(token, using)
    assert "another client_id" in refusal(token, using, client_id="bob")
    for other in (token[:-1], token + "=", token[:-2] + ("AA" if token[-2:] != "AA" else "BB"), token + " "):
        refusal(other, using)
    derived = hs256(derived_client_ids=True)
    assert verify(derived, using, "alice/1").client_id == "alice/1"
    assert verify(derived, using, "alice/2").client_id == "alice/2"


@pytest.mark.req("AUTH-10")
def test_other_stored_claims_give_another_author() -> None:
    using, token = verifier(), hs256(role="r")
    for stored, author in (((), ""), (("role",), '{"claims":{"role":"r"}}'), ((), "")):
        identity = using.verify_now(token, "alice", NOW_S, stored)
        assert identity is not None
        assert identity.author == author


@pytest.mark.req("AUTH-02")
def test_a_key_that_was_withdrawn_verifies_nothing_any_more(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(key_set(jwk("ed", "k"), jwk("ec", "other")))
    using, token = verifier(JwksFile(path, max_age_s=30)), signed("ed", "EdDSA", "k")
    verify(token, using)
    path.write_bytes(key_set(jwk("ec", "other")))
    verify(token, using, now_s=NOW_S + 29)
    assert "kid" in refusal(token, using, now_s=NOW_S + 31)


@pytest.mark.req("LIM-05")
def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered = VerifiedTokens()
    using = verifier()
    monkeypatch.setattr(using, "_verified_tokens", remembered)
    monkeypatch.setattr(verified_tokens, "MAX_REMEMBERED", 3)
    tokens = [hs256(jti=f"t{number}") for number in range(5)]
    for token in tokens:
        verify(token, using)
    assert len(remembered) == 3
    monkeypatch.setattr(verified_tokens, "MAX_REMEMBERED_BYTES", 700)
    verify(hs256(allowed_partitions=["p" * 100] * 5), using)
    assert len(remembered) == 2
    verify(hs256(allowed_partitions=["p" * 100] * 50), using)
    assert len(remembered) == 0, "larger than all the room there is"
    refusal(hs256(exp=NOW_S - 1), using)
    assert len(remembered) == 0, "only good ones"


@pytest.mark.req("AUTH-08")
def test_no_token_is_kept() -> None:
    using, token = verifier(), hs256()
    verify(token, using)
    (name,) = using._verified_tokens._tokens
    assert len(name) == 32
    signature = token.rpartition(".")[2]
    assert signature not in repr(list(using._verified_tokens._tokens.items()))
