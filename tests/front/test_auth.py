from __future__ import annotations

import asyncio
import base64
import datetime
import functools
import hashlib
import hmac
import json
import logging
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import jwt
import msgspec
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, HMACAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.ports import free_port
from unisono.front.auth.keys import MAX_KEY_FILE_BYTES, KeySourceError
from unisono.front.auth.sources import JwksFile, JwksUrl, KeySource, PemPublicKey, SharedSecret
from unisono.front.auth.verify import MAX_TOKEN_BYTES, Identity, Verifier, sign_token
from unisono.protocol.errors import AuthFailed

T = TypeVar("T")
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
Claims = dict[str, object]

NOW_S = 1_700_000_000.0
SECRET = bytes(range(64))
FAMILY = {"RS256": "rsa", "PS256": "rsa", "ES256": "ec", "EdDSA": "ed"}


@functools.cache
def private_key(name: str) -> PrivateKey:
    """A real key pair per name; the part before the dash is its family."""
    match name.partition("-")[0]:
        case "rsa":
            return rsa.generate_private_key(public_exponent=65537, key_size=2048)
        case "ec":
            return ec.generate_private_key(ec.SECP256R1())
        case _:
            return ed25519.Ed25519PrivateKey.generate()


def pem(name: str) -> bytes:
    return private_key(name).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def jwk(name: str, kid: str | None = None, **members: object) -> Claims:
    public = private_key(name).public_key()
    match public:
        case rsa.RSAPublicKey():
            key = RSAAlgorithm.to_jwk(public, as_dict=True)
        case ec.EllipticCurvePublicKey():
            key = ECAlgorithm.to_jwk(public, as_dict=True)
        case _:
            key = OKPAlgorithm.to_jwk(public, as_dict=True)
    named: Claims = {} if kid is None else {"kid": kid}
    return {name: value for name, value in key.items() if name != "key_ops"} | named | members


def oct_jwk(secret: bytes, kid: str) -> Claims:
    return {**HMACAlgorithm.to_jwk(secret, as_dict=True), "kid": kid}


def key_set(*keys: Claims) -> bytes:
    return json.dumps({"keys": keys}).encode()


def claims(**changes: object) -> Claims:
    """Claims of a good token; `...` leaves one out."""
    base: Claims = {"client_id": "alice", "iat": NOW_S, "exp": NOW_S + 60} | changes
    return {name: value for name, value in base.items() if value is not ...}


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def raw_token(header: object, payload: object, secret: bytes = SECRET) -> str:
    """An HS256 token built by hand, for contents that a signing library refuses to write."""
    parts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in (header, payload)]
    signing_input = ".".join(b64(part) for part in parts)
    return signing_input + "." + b64(hmac.digest(secret, signing_input.encode(), hashlib.sha256))


def hs256(**changes: object) -> str:
    return raw_token({"alg": "HS256", "typ": "JWT"}, claims(**changes))


def signed(name: str, algorithm: str, kid: str | None = None, **changes: object) -> str:
    headers = None if kid is None else {"kid": kid}
    return jwt.encode(claims(**changes), private_key(name), algorithm=algorithm, headers=headers)


def verifier(keys: KeySource | None = None, **options: object) -> Verifier:
    return Verifier(keys or SharedSecret(SECRET), leeway_s=0.0, **options)  # type: ignore[arg-type]


def verify(
    token: str, using: Verifier | None = None, client_id: str = "alice", now_s: float = NOW_S
) -> Identity:
    return asyncio.run((using or verifier()).verify(token, client_id, now_s))


def refusal(token: str, using: Verifier | None = None, client_id: str = "alice", now_s: float = NOW_S) -> str:
    with pytest.raises(AuthFailed) as caught:
        verify(token, using, client_id, now_s)
    return str(caught.value)


def unusable(make: Callable[[], object]) -> str:
    with pytest.raises(KeySourceError) as caught:
        make()
    return str(caught.value)


def without_waiting(coroutine: Coroutine[object, object, T]) -> T:
    """Run to the end in one step: a coroutine that would wait for anything fails here."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise AssertionError("the coroutine waited")


# Signatures and algorithms


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


# Claims


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


# Keys from files


@pytest.mark.req("AUTH-02")
@pytest.mark.parametrize(
    ("content", "secret"),
    [
        (b"s" * 32, b"s" * 32),
        (b"s" * 32 + b"\n", b"s" * 32),
        (b"s" * 32 + b"\r\n", b"s" * 32),
        (b"s" * 32 + b"\n\n", b"s" * 32 + b"\n"),
        (b"s" * 32 + b"\r", b"s" * 32 + b"\r"),
        (b" " + b"s" * 32 + b" ", b" " + b"s" * 32 + b" "),
    ],
)
def test_a_secret_file_loses_one_line_break_and_nothing_else(
    content: bytes, secret: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    token = sign_token(secret, "alice", ttl_s=60, now_s=NOW_S)
    assert verify(token, verifier(SharedSecret.from_file(path))).client_id == "alice"


@pytest.mark.req("AUTH-01", "AUTH-02")
@pytest.mark.parametrize(
    ("size", "served"),
    [
        (31, set()),
        (32, {"HS256"}),
        (47, {"HS256"}),
        (48, {"HS256", "HS384"}),
        (64, {"HS256", "HS384", "HS512"}),
    ],
)
def test_the_length_of_a_secret_bounds_its_algorithms(size: int, served: set[str]) -> None:
    if not served:
        assert "31 bytes, at least 32" in unusable(lambda: SharedSecret(SECRET[:size]))
        assert "31 bytes" in unusable(lambda: sign_token(SECRET[:size], "a", ttl_s=1, now_s=NOW_S))
        return
    keys = SharedSecret(SECRET[:size])
    assert keys.algorithms == served
    for algorithm in {"HS256", "HS384", "HS512"} - served:
        assert "needs" in unusable(lambda: verifier(keys, algorithms=[algorithm]))  # noqa: B023
        token = raw_token({"alg": algorithm}, claims(), SECRET[:size])
        assert "does not fit" in refusal(token, verifier(keys))


@pytest.mark.req("AUTH-01")
def test_a_secret_file_with_a_key_others_may_know_is_refused(tmp_path: Path) -> None:
    rsa_key = private_key("rsa")
    assert isinstance(rsa_key, rsa.RSAPrivateKey)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "unisono")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(rsa_key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.datetime(2024, 1, 1))
        .not_valid_after(datetime.datetime(2034, 1, 1))
        .sign(rsa_key, hashes.SHA256())
    )
    public = rsa_key.public_key()
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    contents = [
        pem("rsa"),
        pem("ec"),
        pem("ed") + b"and more",
        certificate.public_bytes(Encoding.PEM),
        certificate.public_bytes(Encoding.DER),
        public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH),
        der,
        base64.b64encode(der) + b"\n",
        base64.encodebytes(der),
        base64.b64encode(pem("rsa")),
        json.dumps(jwk("rsa", "k")).encode(),
        key_set(jwk("rsa", "k")),
        rsa_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    ]
    path = tmp_path / "secret"
    for content in contents:
        path.write_bytes(content)
        assert "no shared secret" in unusable(lambda: SharedSecret.from_file(path)), content[:20]


@pytest.mark.req("AUTH-01")
def test_cutting_the_line_break_does_not_disguise_a_public_key(tmp_path: Path) -> None:
    """One in 256 keys in DER ends in the byte of a line break; this takes the first of a fixed series."""
    path = tmp_path / "secret"
    for seed in range(10_000):
        public = ed25519.Ed25519PrivateKey.from_private_bytes(seed.to_bytes(32, "big")).public_key()
        der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        if der.endswith(b"\n"):
            break
    assert der.endswith(b"\n")
    path.write_bytes(der)
    assert "no shared secret" in unusable(lambda: SharedSecret.from_file(path))


@pytest.mark.req("AUTH-02")
def test_unusable_key_files_say_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "key"
    for load in (SharedSecret.from_file, PemPublicKey.from_file, JwksFile):
        assert "No such file" in unusable(lambda: load(path))  # noqa: B023
        assert "Is a directory" in unusable(lambda: load(tmp_path))  # noqa: B023
    path.write_bytes(b"x" * (MAX_KEY_FILE_BYTES + 1))
    for load in (SharedSecret.from_file, PemPublicKey.from_file, JwksFile):
        assert "too large" in unusable(lambda: load(path))  # noqa: B023
    for content in (b"", b"\n", b"\r\n"):
        path.write_bytes(content)
        assert "empty" in unusable(lambda: SharedSecret.from_file(path))


@pytest.mark.req("AUTH-02")
def test_a_pem_file_must_hold_a_supported_public_key() -> None:
    secret_half = private_key("ec").private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    others: dict[str, rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed448.Ed448PublicKey] = {
        "RSA key has 1024 bits": rsa.generate_private_key(public_exponent=65537, key_size=1024).public_key(),
        "EC on P-256": ec.generate_private_key(ec.SECP384R1()).public_key(),
        "or Ed25519": ed448.Ed448PrivateKey.generate().public_key(),
    }
    assert "private key" in unusable(lambda: PemPublicKey(secret_half))
    assert "not a public key in PEM" in unusable(lambda: PemPublicKey(b"-----BEGIN PUBLIC KEY-----\nAAAA"))
    assert "not a public key in PEM" in unusable(lambda: PemPublicKey(b""))
    assert "openssl x509" in unusable(lambda: PemPublicKey(b"-----BEGIN CERTIFICATE-----\n"))
    for text, key in others.items():
        content = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        assert text in unusable(lambda: PemPublicKey(content))  # noqa: B023


@pytest.mark.req("AUTH-02")
@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 5000, "not JSON"),
        (b"[]", "not a JWK Set"),
        (b'{"keys": {}}', "not a JWK Set"),
        (b'{"keys": []}', "no keys"),
        (b'{"keys": [7]}', "keys[0] is not an object"),
        (b'{"keys": [{"kty": "RSA", "n": "AQAB"}]}', "not a valid RSA key"),
        (b'{"keys": [{"kty": "RSA", "n": 5, "e": "AQAB"}]}', "not a valid RSA key"),
        (b'{"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]}', "not a valid EC key"),
        (b'{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "AA"}]}', "not a valid OKP key"),
        (b'{"keys": [{"kty": "oct", "k": ""}]}', "not a valid oct key"),
        (b'{"keys": [{"kty": "oct", "k": "c2hvcnQ"}]}', "at least 32"),
        (b'{"keys": [{"kty": ["RSA"]}]}', "kty must be"),
        (b'{"keys": [{"kty": "oct", "kid": 7}]}', "kid must be a string"),
    ],
)
def test_an_unusable_key_set_is_refused(content: bytes, text: str, tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(content)
    assert text in unusable(lambda: JwksFile(path))


@pytest.mark.req("AUTH-01", "AUTH-02")
def test_keys_of_a_set_that_do_not_verify_tokens_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(
        key_set(
            {"kty": "new"},
            jwk("rsa", "enc", use="enc"),
            jwk("rsa", "ops", key_ops=["encrypt"]),
            jwk("rsa", "other alg", alg="HS256"),
            jwk("rsa", "ps only", alg="PS256"),
            oct_jwk(pem("rsa"), "published"),
        )
    )
    keys = JwksFile(path)
    assert keys.algorithms == {"PS256"}
    using = verifier(keys)
    assert verify(signed("rsa", "PS256", "ps only"), using)
    assert "does not fit" in refusal(signed("rsa", "RS256", "ps only"), using)
    for kid in ("enc", "ops", "other alg"):
        assert "unknown key id" in refusal(signed("rsa", "RS256", kid), using)
    confused = raw_token({"alg": "HS256", "kid": "published"}, claims(), pem("rsa"))
    assert "unknown key id" in refusal(confused, using)
    assert "serves none" in unusable(lambda: verifier(keys, algorithms=["ES256"]))


@pytest.mark.req("AUTH-01")
def test_a_set_with_private_halves_is_used_for_its_public_ones(tmp_path: Path) -> None:
    secret_half = private_key("ed")
    assert isinstance(secret_half, ed25519.Ed25519PrivateKey)
    path = tmp_path / "jwks.json"
    path.write_bytes(key_set({**OKPAlgorithm.to_jwk(secret_half, as_dict=True), "kid": "k"}))
    assert verify(signed("ed", "EdDSA", "k"), verifier(JwksFile(path)))


@pytest.mark.req("AUTH-02")
def test_a_replaced_jwks_file_is_read_again_for_an_unknown_key_id(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(key_set(jwk("rsa", "old")))
    using = verifier(JwksFile(path))

    async def scenario() -> None:
        old, new = signed("rsa", "RS256", "old"), signed("ec", "ES256", "new")
        await using.verify(old, "alice", NOW_S)
        path.write_bytes(key_set(jwk("ec", "new")))
        with pytest.raises(AuthFailed, match="unknown key id"):
            await using.verify(new, "alice", NOW_S + 0.5)
        await using.verify(old, "alice", NOW_S + 0.5)
        await using.verify(new, "alice", NOW_S + 1)
        with pytest.raises(AuthFailed, match="unknown key id"):
            await using.verify(old, "alice", NOW_S + 1)
        path.write_bytes(b"{ half written")
        with pytest.raises(AuthFailed, match="unavailable"):
            await using.verify(old, "alice", NOW_S + 2)
        await using.verify(new, "alice", NOW_S + 2)

    asyncio.run(scenario())


@pytest.mark.req("AUTH-02")
def test_a_key_withdrawn_from_the_file_is_forgotten_within_its_age(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(key_set(jwk("rsa", "old")))
    using = verifier(JwksFile(path, max_age_s=30))

    async def scenario() -> None:
        token = signed("rsa", "RS256", "old")
        await using.verify(token, "alice", NOW_S)
        path.write_bytes(key_set(jwk("ec", "new")))
        await using.verify(token, "alice", NOW_S + 29)
        with pytest.raises(AuthFailed, match="unknown key id"):
            await using.verify(token, "alice", NOW_S + 30)

    asyncio.run(scenario())


@pytest.mark.req("AUTH-02")
def test_keys_in_memory_are_used_without_waiting(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(key_set(jwk("ed", "k")))
    token = signed("ed", "EdDSA", "k")
    without_waiting(verifier().verify(hs256(), "alice", NOW_S))
    without_waiting(verifier(PemPublicKey(pem("ed"))).verify(token, "alice", NOW_S))
    using = verifier(JwksFile(path))
    asyncio.run(using.keys.prepare(NOW_S))
    without_waiting(using.verify(token, "alice", NOW_S + 59))


# Keys from a URL


class KeyHost:
    """A real HTTP server on the loopback interface that publishes a key set and counts who asks."""

    def __init__(self) -> None:
        self.body = key_set(jwk("rsa", "k1"))
        self.status = 200
        self.headers: dict[str, str] = {}
        self.requests = 0
        self.asked = asyncio.Event()
        self.gate: asyncio.Event | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/jwks.json"

    async def answer(self, request: web.Request) -> web.Response:
        self.requests += 1
        self.asked.set()
        if self.gate is not None:
            await self.gate.wait()
        return web.Response(body=self.body, status=self.status, headers=self.headers)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/jwks.json", self.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            yield
        finally:
            await runner.cleanup()


@pytest.mark.req("AUTH-02")
def test_a_key_set_is_fetched_once_and_again_when_a_new_key_id_appears() -> None:
    async def scenario() -> None:
        host = KeyHost()
        async with host.serving():
            using = verifier(JwksUrl(host.url))
            for second in range(5):
                await using.verify(signed("rsa", "RS256", "k1"), "alice", NOW_S + second)
            assert host.requests == 1
            host.body = key_set(jwk("rsa", "k1"), jwk("ec", "k2"))
            await using.verify(signed("ec", "ES256", "k2"), "alice", NOW_S + 10)
            await using.verify(signed("rsa", "RS256", "k1"), "alice", NOW_S + 11)
            assert host.requests == 2

    asyncio.run(scenario())


@pytest.mark.req("AUTH-02")
def test_garbage_key_ids_cannot_hammer_the_url() -> None:
    async def scenario() -> None:
        host = KeyHost()
        async with host.serving():
            using = verifier(JwksUrl(host.url, min_refresh_s=10))
            for step in range(200):
                with pytest.raises(AuthFailed, match="unknown key id"):
                    await using.verify(signed("ed", "EdDSA", f"garbage {step}"), "alice", NOW_S + step / 10)
            assert host.requests == 2

    asyncio.run(scenario())


@pytest.mark.req("AUTH-02")
def test_connections_that_arrive_together_share_one_fetch_and_none_can_cancel_it() -> None:
    async def scenario() -> None:
        host = KeyHost()
        host.gate = asyncio.Event()
        async with host.serving():
            using = verifier(JwksUrl(host.url))
            token = signed("rsa", "RS256", "k1")
            waiting = [asyncio.create_task(using.verify(token, "alice", NOW_S)) for _ in range(20)]
            await host.asked.wait()
            waiting[0].cancel()
            await asyncio.wait(waiting[:1])
            host.gate.set()
            answers = await asyncio.gather(*waiting[1:])
            assert {identity.client_id for identity in answers} == {"alice"}
            assert host.requests == 1

    asyncio.run(scenario())


@pytest.mark.req("AUTH-02", "AUTH-08")
def test_while_the_key_host_is_down_known_keys_still_work(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        host = KeyHost()
        host.port = free_port()
        async with host.serving():
            pass
        using = verifier(JwksUrl(host.url))
        old, new = signed("rsa", "RS256", "k1"), signed("ec", "ES256", "k2")
        with pytest.raises(AuthFailed, match="signing keys are unavailable"):
            await using.verify(old, "alice", NOW_S)
        async with host.serving():
            await using.verify(old, "alice", NOW_S + 10)
        with pytest.raises(AuthFailed, match="signing keys are unavailable"):
            await using.verify(new, "alice", NOW_S + 20)
        await using.verify(old, "alice", NOW_S + 20)
        later = signed("rsa", "RS256", "k1", exp=NOW_S + 100_000)
        await using.verify(later, "alice", NOW_S + 90_000)
        assert old not in caplog.text
        assert new not in caplog.text
        assert host.url in caplog.text

    with caplog.at_level(logging.DEBUG):
        asyncio.run(scenario())


@pytest.mark.req("AUTH-02")
def test_a_key_the_host_withdraws_is_forgotten_within_its_age() -> None:
    async def scenario() -> None:
        host = KeyHost()
        async with host.serving():
            using = verifier(JwksUrl(host.url, max_age_s=30))
            token = signed("rsa", "RS256", "k1")
            await using.verify(token, "alice", NOW_S)
            host.body = key_set(jwk("ec", "k2"))
            await using.verify(token, "alice", NOW_S + 29)
            with pytest.raises(AuthFailed, match="unknown key id"):
                await using.verify(token, "alice", NOW_S + 30)

    asyncio.run(scenario())


@pytest.mark.req("AUTH-02")
def test_a_clock_set_back_does_not_stop_refreshes() -> None:
    async def scenario() -> None:
        host = KeyHost()
        async with host.serving():
            using = verifier(JwksUrl(host.url))
            token = signed("rsa", "RS256", "k1", iat=0)
            await using.verify(token, "alice", NOW_S)
            host.body = key_set(jwk("ec", "k2"))
            await using.verify(signed("ec", "ES256", "k2", iat=0), "alice", NOW_S - 3600)

    asyncio.run(scenario())


@pytest.mark.req("AUTH-02")
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"body": b" " * (MAX_KEY_FILE_BYTES + 1)}, "more than"),
        ({"status": 500}, "status 500"),
        ({"status": 302, "headers": {"Location": "/jwks.json"}}, "status 302"),
        ({"body": b"<html>"}, "not JSON"),
        ({"body": b"{}"}, "not a JWK Set"),
        ({"headers": {"Content-Encoding": "gzip"}}, "cannot be fetched"),
    ],
)
def test_an_answer_that_is_no_key_set_is_refused(change: dict[str, object], text: str) -> None:
    async def scenario() -> None:
        host = KeyHost()
        for name, value in change.items():
            setattr(host, name, value)
        async with host.serving():
            keys = JwksUrl(host.url)
            with pytest.raises(KeySourceError, match=text):
                await keys.prepare(NOW_S)
            with pytest.raises(AuthFailed, match="unavailable"):
                await verifier(keys).verify(signed("rsa", "RS256", "k1"), "alice", NOW_S)
            assert host.requests == 1

    asyncio.run(scenario())


@pytest.mark.req("AUTH-02")
def test_a_host_that_never_answers_is_given_up() -> None:
    async def scenario() -> None:
        host = KeyHost()
        host.gate = asyncio.Event()
        async with host.serving():
            keys = JwksUrl(host.url, timeout_s=0.05)
            with pytest.raises(KeySourceError, match=r"no answer within 0\.05 s"):
                await keys.prepare(NOW_S)
            host.asked.clear()
            hanging = JwksUrl(host.url)
            waiting = asyncio.create_task(hanging.prepare(NOW_S))
            await host.asked.wait()
            await hanging.close()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            host.gate.set()

    asyncio.run(scenario())


@pytest.mark.req("AUTH-02")
@pytest.mark.parametrize(
    "url", ["", "jwks.json", "file:///etc/passwd", "ftp://h/x", "https://", "http://[", "http://h:99999/"]
)
def test_a_url_that_cannot_name_a_key_host_is_refused(url: str) -> None:
    assert "must be http" in unusable(lambda: JwksUrl(url))


# Silence about secrets


@pytest.mark.req("AUTH-08")
def test_no_refusal_repeats_the_token_or_the_key(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    secret = b"a-very-recognisable-shared-secret-of-many-bytes"
    path.write_bytes(key_set(oct_jwk(secret, "kid-of-the-secret")))
    tokens = [
        raw_token({"alg": "HS256", "kid": "kid-of-the-secret"}, payload, signer)
        for signer in (secret, SECRET)
        for payload in (
            claims(exp="marker-in-exp"),
            claims(client_id="marker-in-client"),
            claims(allowed_partitions={"marker-in-scope": 1}),
            b'{"marker-in-broken-json',
        )
    ]
    tokens += [
        raw_token({"alg": "HS256", "crit": ["marker-in-crit"]}, claims(), secret),
        raw_token({"alg": "marker-in-alg"}, claims(), secret),
        raw_token({"alg": "HS256", "kid": "marker-in-kid"}, claims(), SECRET),
        "marker-in-nonsense",
    ]
    for keys in (SharedSecret(secret), JwksFile(path)):
        using = verifier(keys)
        for token in tokens:
            with caplog.at_level(logging.DEBUG), pytest.raises(AuthFailed) as caught:
                verify(token, using)
            shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + caplog.text
            for piece in ("marker", "recognisable", token, *filter(None, token.split("."))):
                assert piece not in shown


@pytest.mark.req("AUTH-08")
def test_no_repr_shows_key_material(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    secret = b"a-very-recognisable-shared-secret-of-many-bytes"
    path.write_bytes(key_set(oct_jwk(secret, "k")))
    url = JwksUrl("https://user:recognisable@id.example:8443/keys?token=recognisable#recognisable")
    sources = [SharedSecret(secret), JwksFile(path), url]
    for keys in sources:
        assert "recognisable" not in f"{keys!r} {keys} {verifier(keys)!r}"
    assert "https://id.example:8443/keys" in repr(url)
    key = asyncio.run(sources[1].find("k", "HS256", NOW_S))
    assert "recognisable" not in repr(key)
    with pytest.raises(KeySourceError) as caught:
        SharedSecret(b"recognisable")
    assert "recognisable" not in "".join(traceback.format_exception_only(caught.value))
