"""Which tokens are accepted by their form, their algorithm and their signature."""

from __future__ import annotations

import hmac
import json
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.front.tokens import (
    FAMILY,
    NOW_S,
    SECRET,
    b64,
    claims,
    hs256,
    jwk,
    key_set,
    oct_jwk,
    pem,
    private_key,
    raw_token,
    refusal,
    signed,
    unusable,
    verifier,
    verify,
)
from unisono.front.auth.sources import JwksFile, PemPublicKey, SharedSecret
from unisono.front.auth.verify import MAX_TOKEN_BYTES, Identity, sign_token


@pytest.mark.req("AUTH-01", "AUTH-02")
@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_shared_secret_serves_every_hmac_algorithm_it_is_long_enough_for(algorithm: str) -> None:
    token = sign_token(SECRET, "alice", ttl_s=60, now_s=NOW_S, algorithm=algorithm)
    assert verify(token) == Identity("alice", NOW_S + 60, frozenset(), (), has_scope=False)
    assert "signature" in refusal(token, verifier(SharedSecret(SECRET[::-1])))


@pytest.mark.req("AUTH-01", "AUTH-02")
@pytest.mark.parametrize("algorithm", list(FAMILY))
def test_a_pem_public_key_verifies_its_family(algorithm: str, tmp_path: Path) -> None:
    name = FAMILY[algorithm]
    path = tmp_path / "key.pem"
    path.write_bytes(pem(name))
    using = verifier(PemPublicKey.from_file(path))
    assert verify(signed(name, algorithm, "any kid"), using).client_id == "alice"
    assert "signature" in refusal(signed(f"{name}-other", algorithm), using)


@pytest.mark.req("AUTH-01", "AUTH-02")
@pytest.mark.parametrize("algorithm", [*FAMILY, "HS256"])
def test_a_jwks_file_verifies_every_family(algorithm: str, tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    keys = [jwk(name, name) for name in ("rsa", "ec", "ed")]
    path.write_bytes(key_set(*keys, oct_jwk(SECRET, "oct")))
    if algorithm == "HS256":
        token = jwt.encode(claims(), SECRET, algorithm="HS256", headers={"kid": "oct"})
    else:
        token = signed(FAMILY[algorithm], algorithm, FAMILY[algorithm])
    assert verify(token, verifier(JwksFile(path))).client_id == "alice"


@pytest.mark.req("AUTH-01")
@pytest.mark.parametrize("position", ["header", "payload", "signature"])
def test_a_changed_token_is_refused(position: str) -> None:
    header, payload, signature = hs256().split(".")
    changed = {
        "header": f"{b64(json.dumps({'alg': 'HS256'}).encode())}.{payload}.{signature}",
        "payload": f"{header}.{b64(json.dumps(claims(exp=NOW_S + 9999)).encode())}.{signature}",
        "signature": f"{header}.{payload}.{b64(bytes(32))}",
    }
    assert "signature" in refusal(changed[position])


@pytest.mark.req("AUTH-01")
@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", "", None, ["HS256"], 256, "HS1"])
def test_an_algorithm_that_is_none_or_not_accepted_is_refused(algorithm: object) -> None:
    payload = b64(json.dumps(claims()).encode())
    header = b64(json.dumps({"alg": algorithm}).encode())
    for signature in ("", b64(hmac.digest(SECRET, f"{header}.{payload}".encode(), "sha256"))):
        assert refusal(f"{header}.{payload}.{signature}")


@pytest.mark.req("AUTH-01")
def test_the_operators_list_narrows_what_a_key_could_serve() -> None:
    using = verifier(PemPublicKey(pem("rsa")), algorithms=["PS256", "ES256"])
    assert verify(signed("rsa", "PS256"), using).client_id == "alice"
    assert "not accepted" in refusal(signed("rsa", "RS256"), using)


@pytest.mark.req("AUTH-01")
@pytest.mark.parametrize("algorithms", [["none"], ["HS256", "NONE"], ["HS1024"], [], ["RS256", "EdDSA"]])
def test_an_unusable_list_of_algorithms_is_a_configuration_error(algorithms: list[str]) -> None:
    assert unusable(lambda: verifier(algorithms=algorithms))


@pytest.mark.req("AUTH-01")
@pytest.mark.parametrize("source", ["pem", "jwks"])
def test_a_public_key_never_becomes_an_hmac_secret(source: str, tmp_path: Path) -> None:
    """The classic confusion: sign with HS256, the published key's bytes as the secret."""
    path = tmp_path / "jwks.json"
    path.write_bytes(key_set(jwk("rsa", "k1")))
    using = verifier(PemPublicKey(pem("rsa")) if source == "pem" else JwksFile(path))
    der = private_key("rsa").public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    for secret in (pem("rsa"), pem("rsa").rstrip(), der, path.read_bytes()):
        for kid in ("k1", None):
            header = {"alg": "HS256"} | ({} if kid is None else {"kid": kid})
            assert refusal(raw_token(header, claims(), secret), using)


@pytest.mark.req("AUTH-01")
def test_a_key_is_only_used_under_its_own_id(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(key_set(jwk("rsa", "a"), jwk("rsa-other", "b"), jwk("ec", "c"), oct_jwk(SECRET, "d")))
    using = verifier(JwksFile(path))
    assert "signature" in refusal(signed("rsa", "RS256", "b"), using)
    assert "does not fit" in refusal(signed("rsa", "RS256", "c"), using)
    assert "does not fit" in refusal(raw_token({"alg": "HS256", "kid": "a"}, claims(), pem("rsa")), using)
    assert "several keys" in refusal(signed("rsa", "RS256"), using)
    assert "unknown key id" in refusal(signed("rsa", "RS256", "../a"), using)
    assert verify(signed("ec", "ES256"), using).client_id == "alice"


@pytest.mark.req("AUTH-01")
@pytest.mark.parametrize(
    "header",
    [
        {"alg": "HS256", "kid": 7},
        {"alg": "HS256", "crit": ["exp"]},
        {"alg": "HS256", "crit": ["b64"], "b64": False},
        [],
        b"\xff",
        b"[" * 5000,
        b"{" + b'"a":' + b"9" * 5000 + b"}",
    ],
)
def test_a_strange_header_is_refused(header: object) -> None:
    assert refusal(raw_token(header, claims()))


@pytest.mark.req("AUTH-01")
@pytest.mark.parametrize(
    "token", ["", ".", "..", "a.b", "a.b.c", "....", "ä.b.c", "\ud800", "x" * 200, "!.!.!"]
)
def test_what_is_not_a_token_is_refused(token: str) -> None:
    assert "not a JWT" in refusal(token)


@pytest.mark.req("AUTH-01")
@pytest.mark.parametrize("payload", [b"", b"[]", b"1", b"{", b"\xff", b"[" * 5000, b'{"exp": 1e999}'])
def test_signed_claims_that_are_no_object_are_refused(payload: bytes) -> None:
    assert "claims" in refusal(raw_token({"alg": "HS256"}, payload))


@pytest.mark.req("AUTH-01")
def test_an_oversized_token_is_refused_before_any_work() -> None:
    assert "longer than" in refusal(hs256(padding="x" * MAX_TOKEN_BYTES))


@pytest.mark.req("AUTH-01", "AUTH-08")
@settings(max_examples=60)
@given(st.data())
def test_no_single_changed_character_keeps_a_token_valid(data: st.DataObject) -> None:
    token = hs256()
    at = data.draw(st.integers(0, len(token) - 1))
    character = data.draw(st.characters(codec="utf-8").filter(lambda drawn: drawn != token[at]))
    assert token not in refusal(token[:at] + character + token[at + 1 :])
