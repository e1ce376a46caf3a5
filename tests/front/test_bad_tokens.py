"""Tokens that no verifier may accept: known attacks, and ways to write nonsense."""

from __future__ import annotations

import asyncio
import base64
import functools
import hmac
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.front.tokens import (
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
    signed,
    verify,
)
from unisono.front.auth.sources import JwksFile, PemPublicKey, SharedSecret
from unisono.front.auth.verify import Verifier
from unisono.protocol.errors import AuthFailed

ISSUER, AUDIENCE = "https://id.example", "unisono"
GOOD = {"iss": ISSUER, "aud": AUDIENCE}
HEADER = {"alg": "HS256", "typ": "JWT", "kid": "oct"}

Named = tuple[str, str]


def written(header: object, payload: object | None = None, secret: bytes = SECRET) -> str:
    """A token whose signature is right."""
    return raw_token(header, claims(**GOOD) if payload is None else payload, secret)


def unsigned(header: object, signature: str = "") -> str:
    return ".".join([b64(json.dumps(header).encode()), b64(json.dumps(claims(**GOOD)).encode()), signature])


def of_none() -> Iterator[Named]:
    for name in (
        "none",
        "None",
        "NONE",
        "nOnE",
        "none ",
        " none",
        "no\u0000ne",
        "n\u043ene",
        "null",
        "",
        "false",
    ):
        for signature in ("", "AA", b64(bytes(32))):
            yield f"alg {name!r} with signature {signature[:3]!r}", unsigned({"alg": name}, signature)
    yield "no alg", unsigned({"typ": "JWT"})
    strange_algs: list[object] = [None, True, 0, [], ["none"], ["HS256"], {"alg": "HS256"}]
    for strange in strange_algs:
        yield f"alg {strange!r}", written({"alg": strange})
    for alg in (
        "HS1",
        "HS2560",
        "hs256",
        "HMACSHA256",
        "ES256K",
        "RSA1_5",
        "dir",
        "A128KW",
        "HS256,none",
        "ES512",
    ):
        yield f"alg {alg}", written({"alg": alg})


def of_confusion() -> Iterator[Named]:
    """A published key as the secret of an HMAC."""
    for name in ("rsa", "ec", "ed"):
        public = private_key(name).public_key()
        secrets = {
            "PEM": pem(name),
            "PEM without line break": pem(name).rstrip(),
            "PEM with CRLF": pem(name).replace(b"\n", b"\r\n"),
            "DER": public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
            "JWK": json.dumps(jwk(name, name)).encode(),
            "JWK, sorted": json.dumps(jwk(name, name), sort_keys=True, separators=(",", ":")).encode(),
        }
        for kind, secret in secrets.items():
            for kid in (name, None):
                header = {"alg": "HS256"} | ({} if kid is None else {"kid": kid})
                yield f"HS256 with {name} as {kind}, kid {kid}", written(header, secret=secret)
    for secret in (b"", b"\0", b"\0" * 32, b"secret", SECRET[:31], SECRET + b"\0", SECRET[::-1], b"null"):
        yield f"HS256 with the secret {secret[:8]!r}, {len(secret)} bytes", written(HEADER, secret=secret)
    for alg, name in (("RS256", "ec"), ("ES256", "rsa"), ("EdDSA", "ec"), ("HS256", "rsa")):
        token = signed(name, {"rsa": "RS256", "ec": "ES256"}[name], name, **GOOD)
        _, payload, signature = token.split(".")
        yield (
            f"{name} signature called {alg}",
            f"{b64(json.dumps({'alg': alg, 'kid': name}).encode())}.{payload}.{signature}",
        )


def of_headers() -> Iterator[Named]:
    other_rsa = jwk("rsa-attacker", "rsa")
    for member, value in {
        "jwk": other_rsa,
        "jku": "https://evil.example/jwks.json",
        "x5u": "https://evil.example/cert.pem",
        "x5c": [base64.b64encode(pem("rsa-attacker")).decode()],
        "x5t": "AAAA",
        "kid": "rsa",
    }.items():
        header = {"kid": "rsa", member: value}
        token = jwt.encode(claims(**GOOD), private_key("rsa-attacker"), algorithm="RS256", headers=header)
        yield f"a foreign key, and {member}", token
    crits: list[object] = [["exp"], ["b64"], [], ["unknown"], "exp", None, 1, {}, [1]]
    for crit in crits:
        yield f"crit {crit!r}", written(HEADER | {"crit": crit, "b64": False, "unknown": 1})
    kids: list[object] = [
        7, True, [], {}, ["oct"], "../../dev/null", "/dev/null", "file:///etc/passwd", "' OR '1'='1", "oct' --",
        "oct\0", " oct", "OCT", "x" * 10_000, "", "\u202eoct", "$(id)", "https://evil.example/key", "oct,rsa",
    ]  # fmt: skip
    for kid in kids:
        yield f"kid {str(kid)[:30]!r}", written(HEADER | {"kid": kid}, secret=b"\0" * 32)
    for text in (
        b'{"alg":"none","alg":"HS256","kid":"oct"}', b'{"alg":"HS256","alg":"none","kid":"oct"}',
        b'{"alg":"HS256","alg":"HS256","kid":"oct"}', b'{"alg":"HS256","kid":"oct","kid":"rsa"}',
        b'{"alg":"HS256","\\u0061lg":"HS256","kid":"oct"}', b'{"alg":"HS256","kid":"oct","x":{"a":1,"a":2}}',
        b"", b"null", b"[]", b'"HS256"', b"{", b'{"alg":"HS256","kid":"oct"} x', b'{"alg":"HS256","kid":"oct",}',
        b"{'alg':'HS256'}", b'{"alg":"HS256","kid":"oct","x":NaN}', b'{"alg":"HS256","kid":"oct","x":1e999}',
        b"\xef\xbb\xbf" + b'{"alg":"HS256","kid":"oct"}', '{"alg":"HS256","kid":"oct"}'.encode("utf-16"),
        b'{"alg":"HS256","kid":"\\ud800"}', b'{"alg":"HS256","x":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"ALG":"HS256"}', b'{"alg":"HS256\\u0000","kid":"oct"}',
    ):  # fmt: skip
        yield f"header {text[:40]!r}", written(text)


def of_claims() -> Iterator[Named]:
    strange: list[object] = [None, True, False, "", "1700000060", "soon", [], [NOW_S + 60], {}, {"exp": 1}]
    for exp in (
        ...,
        *strange,
        0,
        -1,
        -1e300,
        NOW_S,
        NOW_S - 1,
        10**400,
        1e308 * 10,
        float("nan"),
        -float("inf"),
    ):
        yield f"exp {exp!r:.30}", written(HEADER, claims(**GOOD, exp=exp))
    for nbf in (*strange, NOW_S + 11, NOW_S + 10**9, 1e300, 10**400, float("nan"), float("inf")):
        yield f"nbf {nbf!r:.30}", written(HEADER, claims(**GOOD, nbf=nbf))
    for client in (
        ...,
        None,
        "",
        "bob",
        "Alice",
        "alice ",
        "alice\0",
        7,
        True,
        [],
        ["alice"],
        {"alice": 1},
        "alic\u0435",
    ):
        yield f"client_id {client!r}", written(HEADER, claims(**GOOD, client_id=client))
    scopes: list[object] = [None, "p", "*", 7, True, {}, {"p": 1}, [1], [None], ["p", 7], [["p"]], [{}]]
    for claim in ("allowed_partitions", "allowed_partition_prefixes"):
        for value in scopes:
            yield f"{claim} {value!r}", written(HEADER, claims(**GOOD, **{claim: value}))
    for issuer in (..., None, "", "https://id.example/", "HTTPS://id.example", [ISSUER], {"iss": ISSUER}, 1):
        yield f"iss {issuer!r}", written(HEADER, claims(aud=AUDIENCE, iss=issuer))
    for audience in (
        ...,
        None,
        "",
        "unisono2",
        [],
        ["other"],
        [["unisono"]],
        {"unisono": 1},
        1,
        "unisono other",
    ):
        yield f"aud {audience!r}", written(HEADER, claims(iss=ISSUER, aud=audience))
    good = json.dumps(claims(**GOOD))[1:-1].encode()
    for text in (
        b'{"client_id":"bob",' + good + b"}", b"{" + good + b',"client_id":"alice"}', b"{" + good + b',"exp":9e9}',
        b'{"allowed_partitions":["*"],"allowed_partitions":[],' + good + b"}", b"{" + good + b',"x":[{"a":1,"a":1}]}',
        b"", b"null", b"[]", b"[{" + good + b"}]", b"{" + good, b"{" + good + b"}}", b"{" + good + b',"x":NaN}',
        b"{" + good + b',"x":Infinity}', b"{" + good + b',"x":"\\ud800"}', b"{" + good + b',"x":"\xff"}',
        b"\xef\xbb\xbf{" + good + b"}", b"{" + good + b',"x":' + b"[" * 3000 + b"]" * 3000 + b"}",
    ):  # fmt: skip
        yield f"claims {text[:30]!r}…{text[-20:]!r}", written(HEADER, text)


def of_spelling() -> Iterator[Named]:
    token = written(HEADER)
    header, payload, signature = token.split(".")
    last = signature[-1]
    same_bits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    twin = same_bits[same_bits.index(last) ^ 1]
    spellings = {
        "padding": f"{token}=",
        "much padding": f"{token}====",
        "padded header": f"{header}=.{payload}.{signature}",
        "space before": f" {token}",
        "space behind": f"{token} ",
        "line break behind": f"{token}\n",
        "tab within": f"{header}.{payload}.\t{signature}",
        "a character outside of the alphabet": f"{token}!",
        "another within": f"{header}.{payload}.{signature[:9]}*{signature[9:]}",
        "unused bits of the last character": f"{header}.{payload}.{signature[:-1]}{twin}",
        "NUL behind": f"{token}\0",
        "four parts": f"{token}.",
        "five parts": f"{token}.{payload}.{signature}",
        "a part before": f".{token}",
        "two parts": f"{header}.{payload}",
        "no signature": f"{header}.{payload}.",
        "one part": header,
        "nothing": "",
        "dots": "..",
        "a quoted token": f'"{token}"',
        "Bearer": f"Bearer {token}",
        "twice": token + token,
        "parts change places": f"{payload}.{header}.{signature}",
        "a signature cut short": token[:-2],
        "a signature of another token": f"{header}.{payload}.{hs256().split('.')[2]}",
        "a longer signature": f"{header}.{payload}.{b64(bytes(64))}",
        "full-width letters": token.replace("e", "\uff45", 1),
        "JSON serialisation": json.dumps({"payload": payload, "protected": header, "signature": signature}),
        "too long": written(HEADER, claims(**GOOD, pad="x" * 20_000)),
    }
    yield from spellings.items()
    for number in range(1, 9):  # one of them has a character that the two alphabets write differently
        other = written(HEADER, claims(**GOOD, n=number))
        standard = other.replace("-", "+").replace("_", "/")
        yield f"the standard alphabet, {number}", standard if standard != other else f"{other}+"
    inner = written(HEADER)
    yield "a token within a token", written(HEADER | {"cty": "JWT"}, inner.encode())
    yield (
        "JWE, dir",
        ".".join([b64(b'{"alg":"dir","enc":"A128GCM"}'), "", b64(bytes(12)), b64(b"x" * 40), b64(bytes(16))]),
    )
    yield "JWE, three parts", written({"alg": "dir", "enc": "A128GCM"})
    yield "unencoded payload", written(HEADER | {"b64": False, "crit": ["b64"]})
    yield "zip", written(HEADER | {"zip": "DEF"}, b"\x78\x9c\xab\x56\x00")


def of_weak_signatures() -> Iterator[Named]:
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    body = unsigned({"alg": "ES256", "kid": "ec"})[:-1]
    for r, s in (
        (0, 0),
        (0, 1),
        (1, 0),
        (order, order),
        (1, order),
        (order - 1, 1),
        (2**256 - 1, 2**256 - 1),
    ):
        yield (
            f"ES256 with r={r:x}, s={s:x}",
            f"{body}.{b64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}",
        )
    der = ec.generate_private_key(ec.SECP256R1()).sign(body.encode(), ec.ECDSA(hashes.SHA256()))
    for signature in (b"", b"\0", bytes(63), bytes(65), der):
        yield f"ES256 with {len(signature)} bytes", f"{body}.{b64(signature)}"
    for alg, kid in (("RS256", "rsa"), ("PS256", "rsa"), ("EdDSA", "ed")):
        start = (
            f"{b64(json.dumps({'alg': alg, 'kid': kid}).encode())}.{b64(json.dumps(claims(**GOOD)).encode())}"
        )
        for signature in (b"", bytes(64), bytes(256), b"\xff" * 256, b"\0" * 255 + b"\1"):
            yield f"{alg} with {len(signature)} bytes {signature[-1:]!r}", f"{start}.{b64(signature)}"
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    start = unsigned({"alg": "RS256", "kid": "rsa"})
    weak_signature = weak.sign(start[:-1].encode(), padding.PKCS1v15(), hashes.SHA256())
    yield "RS256 by a key of 1024 bits", start + b64(weak_signature)
    text = written(HEADER)
    for digest, alg in (("sha1", "HS256"), ("md5", "HS256"), ("sha512", "HS256"), ("sha256", "HS512")):
        head = b64(json.dumps(HEADER | {"alg": alg}).encode())
        start = f"{head}.{text.split('.')[1]}"
        yield f"{alg} with {digest}", f"{start}.{b64(hmac.digest(SECRET, start.encode(), digest))}"


TABLE: dict[str, Callable[[], Iterator[Named]]] = {
    function.__name__: function
    for function in (of_none, of_confusion, of_headers, of_claims, of_spelling, of_weak_signatures)
}


@functools.cache
def bad_tokens(kind: str) -> tuple[Named, ...]:
    return tuple(TABLE[kind]())


@pytest.fixture(scope="module")
def verifiers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verifier]:
    path: Path = tmp_path_factory.mktemp("keys") / "jwks.json"
    path.write_bytes(key_set(jwk("rsa", "rsa"), jwk("ec", "ec"), jwk("ed", "ed"), oct_jwk(SECRET, "oct")))
    keys = {"secret": SharedSecret(SECRET), "JWKS": JwksFile(path)}
    keys |= {name: PemPublicKey(pem(name)) for name in ("rsa", "ec", "ed")}
    return {name: Verifier(each, issuer=ISSUER, audience=AUDIENCE) for name, each in keys.items()}


@pytest.mark.req("AUTH-01", "AUTH-03", "AUTH-04", "AUTH-07", "AUTHZ-01")
@pytest.mark.parametrize("kind", TABLE)
def test_no_bad_token_is_accepted(verifiers: dict[str, Verifier], kind: str) -> None:
    async def accepted() -> list[str]:
        found = []
        for name, token in bad_tokens(kind):
            for source, verifier in verifiers.items():
                try:
                    await verifier.verify(token, "alice", NOW_S)
                except AuthFailed:
                    continue
                found.append(f"{name}, by {source}")
        return found

    assert asyncio.run(accepted()) == []


@pytest.mark.req("AUTH-01")
def test_the_table_is_long_and_its_good_tokens_are_good(verifiers: dict[str, Verifier]) -> None:
    names = [name for kind in TABLE for name, _ in bad_tokens(kind)]
    assert len(names) >= 200
    assert len(set(names)) == len(names)
    for source in ("secret", "JWKS"):
        assert verify(written(HEADER), verifiers[source]).client_id == "alice"
    for name, algorithm in (("rsa", "RS256"), ("rsa", "PS256"), ("ec", "ES256"), ("ed", "EdDSA")):
        for source in ("JWKS", name):
            assert verify(signed(name, algorithm, name, **GOOD), verifiers[source]).client_id == "alice"
