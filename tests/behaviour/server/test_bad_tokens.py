"""Bad tokens over a real socket: a sample of tests/front/test_bad_tokens.py, with the secret of the server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from tests.behaviour.server.harness import SECRET, Server
from tests.front.tokens import b64, raw_token

HS256 = {"alg": "HS256", "typ": "JWT"}


def good(who: str) -> dict[str, object]:
    return {"client_id": who, "exp": time.time() + 600}


def body(who: str) -> bytes:
    return json.dumps(good(who)).encode()


def respelled(who: str, change: Callable[[str], str]) -> str:
    token = raw_token(HS256, good(who), SECRET)
    changed = change(token)
    assert changed != token
    return changed


MAKE: dict[str, Callable[[str], str]] = {
    "no signature": lambda who: f"{b64(b'{}')}.{b64(body(who))}.",
    "alg none": lambda who: raw_token({"alg": "none"}, good(who), SECRET),
    "alg nOnE, unsigned": lambda who: f"{b64(json.dumps({'alg': 'nOnE'}).encode())}.{b64(body(who))}.",
    "another secret": lambda who: raw_token(HS256, good(who), SECRET[::-1]),
    "crit": lambda who: raw_token(HS256 | {"crit": ["x"], "x": 1}, good(who), SECRET),
    "alg twice": lambda who: raw_token(b'{"alg":"none","alg":"HS256"}', good(who), SECRET),
    "client_id twice": lambda who: raw_token(HS256, b'{"client_id":"x",' + body(who)[1:], SECRET),
    "exp missing": lambda who: raw_token(HS256, {"client_id": who}, SECRET),
    "exp as text": lambda who: raw_token(HS256, good(who) | {"exp": "9999999999"}, SECRET),
    "exp NaN": lambda who: raw_token(HS256, good(who) | {"exp": float("nan")}, SECRET),
    "nbf in an hour": lambda who: raw_token(HS256, good(who) | {"nbf": time.time() + 3600}, SECRET),
    "of another client": lambda who: raw_token(HS256, good("somebody"), SECRET),
    "partitions as text": lambda who: raw_token(HS256, good(who) | {"allowed_partitions": "*"}, SECRET),
    "kid a list": lambda who: raw_token(HS256 | {"kid": []}, good(who), SECRET),
    "padded": lambda who: respelled(who, lambda token: token + "="),
    "line break": lambda who: respelled(who, lambda token: token + "\n"),
    "a character to be skipped": lambda who: respelled(who, lambda token: token + "*"),
    "five parts": lambda who: respelled(who, lambda token: f"{token}.a.b"),
    "empty": lambda who: "",
}


@pytest.mark.req("AUTH-01", "AUTH-03", "AUTH-04", "CONN-10")
@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE.keys())
def test_a_bad_token_ends_the_connection_with_4001(
    server: Server, who: str, make: Callable[[str], str]
) -> None:
    token = make(who)
    with server.peer() as peer:
        peer.send("connect", {"token": token, "client_id": who})
        error = peer.expect_error("auth_failed")
        assert not token or token not in json.dumps(error)
        peer.expect_close(4001)


def test_the_good_token_of_the_sample_is_good(server: Server, who: str) -> None:
    with server.peer() as peer:
        assert peer.connect(who, raw_token(HS256, good(who), SECRET))["client_id"] == who
