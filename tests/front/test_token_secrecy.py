"""No error, log line or repr shows a token or a key."""

from __future__ import annotations

import asyncio
import logging
import traceback
from pathlib import Path

import pytest

from tests.front.tokens import (
    NOW_S,
    SECRET,
    claims,
    key_set,
    oct_jwk,
    raw_token,
    verifier,
    verify,
)
from unisono.front.auth.keys import KeySourceError
from unisono.front.auth.sources import JwksFile, JwksUrl, SharedSecret
from unisono.protocol.errors import AuthFailed


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
