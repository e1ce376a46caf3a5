"""Issuer, audience, algorithms and public keys a server is configured with; no token and no secret is logged."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest

from tests.behaviour.server.harness import SECRET, Server, item, running
from tests.behaviour.server.signing import HS256, TTLS_S, OwnCommand, accepted, by_hand, claims, refused
from tests.front.tokens import jwk, pem, private_key
from tests.waiting import PATIENCE_S, in_a_window

ISSUER, AUDIENCE = "https://issuer.example", "unisono-tests"


def keyed(data: Path, *key_options: str) -> OwnCommand:
    """`unisono serve` that verifies with these keys."""
    command = [
        sys.executable, "-m", "unisono", "serve", "--data", str(data), "--port", "0", "--admin-port", "0",
        "--access-default", "allow", "--model", "open", "--log-level", "debug", *key_options,
    ]  # fmt: skip
    return OwnCommand(data, command)


def signed(name: str, algorithm: str, who: str, kid: str | None = None, **changes: Any) -> str:
    headers = None if kid is None else {"kid": kid}
    return jwt.encode(claims(who, **changes), private_key(name), algorithm=algorithm, headers=headers)


# -- issuer, audience, and nothing in the log ----------------------------------------------------------------


LEEWAY_S = 300.0


@pytest.fixture(scope="module")
def particular(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Wants an issuer, an audience and HS512; logs everything."""
    data = tmp_path_factory.mktemp("particular") / "data"
    with running(
        data, "--access-default", "allow", "--model", "open", "--log-level", "debug",
        "--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE, "--jwt-algorithms", "HS512,HS256",
        "--jwt-leeway-s", str(LEEWAY_S),
    ) as started:  # fmt: skip
        yield started


def mine(who: str, **changes: Any) -> str:
    """A token for `particular`."""
    return jwt.encode(claims(who, **({"iss": ISSUER, "aud": AUDIENCE} | changes)), SECRET, algorithm="HS512")


@pytest.mark.req("AUTH-07")
@pytest.mark.parametrize("wrong", [..., "", None, 5, f"{ISSUER}/", [ISSUER]])
def test_the_issuer_is_checked_where_configured(particular: Server, who: str, wrong: Any) -> None:
    accepted(particular, who, mine(who))
    refused(particular, who, by_hand(HS256, claims(who, aud=AUDIENCE, iss=wrong)))


@pytest.mark.req("AUTH-07")
@pytest.mark.parametrize("wrong", [..., "", None, 5, "somewhere else", [], ["a", "b"]])
def test_the_audience_is_checked_where_configured(particular: Server, who: str, wrong: Any) -> None:
    accepted(particular, who, mine(who, aud=["somewhere else", AUDIENCE]))
    refused(particular, who, by_hand(HS256, claims(who, iss=ISSUER, aud=wrong)))


@pytest.mark.req("AUTH-07", "AUTH-04")
def test_the_leeway_is_given_to_the_end_of_a_token_and_no_more(particular: Server, who: str) -> None:
    refused(particular, who, mine(who, exp=time.time() - LEEWAY_S - 1))
    refused(particular, who, mine(who, nbf=time.time() + 600))

    def late(left_s: float) -> None:
        accepted(particular, who, mine(who, exp=time.time() - LEEWAY_S + 10 * left_s, nbf=time.time() + 1))
        with particular.peer() as peer:
            exp = time.time() - LEEWAY_S + left_s
            peer.connect(who, mine(who, exp=exp))
            peer.expect_error("auth_failed")
            assert exp + LEEWAY_S - 0.02 <= time.time() < exp + LEEWAY_S + left_s
            peer.expect_close(4001)

    in_a_window(late, *TTLS_S)


@pytest.mark.req("AUTH-07")
def test_without_leeway_an_expired_token_is_refused_at_once(server: Server, who: str) -> None:
    assert "expired" in refused(server, who, by_hand(HS256, claims(who, exp=time.time() - 0.05)))


@pytest.mark.req("AUTH-01")
def test_an_algorithm_off_the_list_is_refused(particular: Server, who: str) -> None:
    body = claims(who, iss=ISSUER, aud=AUDIENCE)
    refused(particular, who, jwt.encode(body, SECRET, algorithm="HS384"))
    accepted(particular, who, jwt.encode(body, SECRET, algorithm="HS256"))


@pytest.mark.req("AUTH-08")
def test_no_token_and_no_secret_is_ever_logged_or_repeated(particular: Server, who: str, part: str) -> None:
    good = mine(who)
    bad = [
        mine(f"not-{who}"), mine(who, exp=1), good[:-5] + "AAAAA", by_hand({"alg": "none"}, claims(who)),
        "a-token-that-is-no-token-at-all",
    ]  # fmt: skip
    told = []
    with particular.peer() as peer:
        for message in (
            {"token": good}, {"token": [good], "client_id": who}, {"token": good, "client_id": 5},
            {"token": good, "client_id": who, "supported_profiles": 5},
        ):  # fmt: skip
            peer.send("connect", message)
            told.append(json.dumps(peer.expect_error("bad_request")))
        peer.send("heartbeat", {}, token=good)
        peer.expect("heartbeat_ack")
        peer.connect(who, good)
        peer.send("connect", {"token": good, "client_id": who})
        told.append(json.dumps(peer.expect_error("bad_request")))
        peer.send("submit_event", item([part], {"type": "event", "payload": {"schema": "s", "data": 1}}))
        peer.expect("event_committed")
        peer.send("heartbeat", {"client_id": good})
        told.append(json.dumps(peer.expect_error("auth_failed")))
    told += [refused(particular, who, token) for token in bad]
    told.append(particular.get("/metrics"))
    log = particular.log.read_text()
    assert "unisono" in log
    for token in (good, *bad):
        for piece in (token, *token.split(".")[1:]):
            if len(piece) > 25:
                assert piece not in log
                assert not any(piece in text for text in told)
    for secret in (SECRET.decode(), base64.b64encode(SECRET).decode(), SECRET.hex()):
        assert secret not in log
        assert not any(secret in text for text in told)


# -- public keys ---------------------------------------------------------------------------------------------


@pytest.mark.req("AUTH-01", "AUTH-02", "AUTH-08")
def test_a_server_with_a_pem_public_key(tmp_path: Path, who: str) -> None:
    file = tmp_path / "issuer.pem"
    file.write_bytes(pem("rsa"))
    server = keyed(tmp_path / "data", "--jwt-public-key", str(file))
    server.start()
    try:
        for algorithm in ("RS256", "PS256"):
            accepted(server, who, signed("rsa", algorithm, who))
        refused(server, who, signed("rsa-other", "RS256", who))
        refused(server, who, signed("ec", "ES256", who))
        refused(server, who, signed("rsa", "RS256", who, exp=time.time() - 1))
        # RFC 8725: the public key is known to everybody, so it must never serve as an HMAC secret.
        for secret in (pem("rsa"), pem("rsa").strip(), pem("rsa").replace(b"\n", b"\r\n")):
            refused(server, who, by_hand(HS256, claims(who), secret=secret))
        refused(server, who, by_hand({"alg": "none"}, claims(who)))
        assert signed("rsa", "RS256", who).split(".")[0] not in server.log.read_text()
    finally:
        server.kill()


@pytest.mark.req("AUTH-01", "AUTH-02")
def test_a_server_with_a_jwks_file_that_changes(tmp_path: Path, who: str) -> None:
    file = tmp_path / "jwks.json"
    names = {"rsa-1": "RS256", "ec-1": "ES256", "ed-1": "EdDSA"}
    file.write_text(json.dumps({"keys": [jwk(name, name) for name in names]}))
    server = keyed(tmp_path / "data", "--jwks", str(file))
    server.start()
    try:
        for name, algorithm in names.items():
            accepted(server, who, signed(name, algorithm, who, kid=name))
        refused(server, who, signed("rsa-1", "RS256", who, kid="ec-1"))
        refused(server, who, signed("ec-2", "ES256", who, kid="ec-1"))
        refused(server, who, by_hand({"alg": "HS256", "kid": "rsa-1"}, claims(who), secret=pem("rsa-1")))
        refused(server, who, signed("ec-2", "ES256", who, kid="ec-2"))
        file.write_text(json.dumps({"keys": [jwk("ec-2", "ec-2")]}))
        deadline = (
            time.monotonic() + PATIENCE_S
        )  # an unknown key id makes it look again, at most once a second
        while True:
            with server.peer() as peer:
                peer.send("connect", {"token": signed("ec-2", "ES256", who, kid="ec-2"), "client_id": who})
                if peer.receive()["type"] == "connected":
                    break
            assert time.monotonic() < deadline
            time.sleep(0.1)
        refused(server, who, signed("rsa-1", "RS256", who, kid="rsa-1"))
    finally:
        server.kill()


@pytest.mark.req("AUTH-01")
@pytest.mark.parametrize("algorithms", ["none", "HS256,none", "RS256", "HS9000"])
def test_a_list_of_algorithms_that_cannot_be_right_does_not_start(tmp_path: Path, algorithms: str) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    server = keyed(tmp_path / "data", "--jwt-secret-file", str(secret), "--jwt-algorithms", algorithms)
    ended = subprocess.run(server.command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode != 0
    assert "algorithm" in ended.stderr or "accepted" in ended.stderr
    assert SECRET.decode() not in ended.stderr
