"""Verification keys from files: secrets, PEM, JWK Sets."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from jwt.algorithms import OKPAlgorithm

from tests.front.tokens import (
    NOW_S,
    SECRET,
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
    without_waiting,
)
from unisono.front.auth.keys import MAX_KEY_FILE_BYTES
from unisono.front.auth.sources import JwksFile, PemPublicKey, SharedSecret
from unisono.front.auth.verify import sign_token
from unisono.protocol.errors import AuthFailed


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
