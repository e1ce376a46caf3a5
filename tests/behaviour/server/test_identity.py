"""Who a connection is, over a real socket: proven at connect, enforced until the token ends."""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tests.behaviour.server.harness import SECRET, Server, item, running, set_event, tree_event
from tests.waiting import PATIENCE_S, in_a_window

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
TTLS_S = (0.7, 4.0, 20.0)
"""How long a token lasts whose end is waited for."""

ISSUER, AUDIENCE = "https://issuer.example", "unisono-tests"


class OwnCommand(Server):
    """A server started by a command of the test's own, for keys and parts the ordinary one does not have."""

    def __init__(self, data: Path, command: Sequence[str]) -> None:
        super().__init__(data)
        self.command = command

    def start(self) -> Server:
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                self.command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        assert self.process.stdout is not None
        match = re.fullmatch(r"unisono ready (\S+) admin (\S+)\n", self.process.stdout.readline())
        if match is None:
            self.kill()
            raise AssertionError(f"no ready line; log:\n{self.log.read_text()}")
        self.url, self.admin = match.groups()
        return self


def keyed(data: Path, *key_options: str) -> OwnCommand:
    """`unisono serve` that verifies with these keys."""
    command = [
        sys.executable, "-m", "unisono", "serve", "--data", str(data), "--port", "0", "--admin-port", "0",
        "--access-default", "allow", "--model", "open", "--log-level", "debug", *key_options,
    ]  # fmt: skip
    return OwnCommand(data, command)


@functools.cache
def private_key(name: str) -> PrivateKey:
    match name.partition("-")[0]:
        case "rsa":
            return rsa.generate_private_key(public_exponent=65537, key_size=2048)
        case "ec":
            return ec.generate_private_key(ec.SECP256R1())
        case _:
            return ed25519.Ed25519PrivateKey.generate()


def pem(name: str) -> bytes:
    return private_key(name).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def jwk(name: str) -> dict[str, Any]:
    public = private_key(name).public_key()
    match public:
        case rsa.RSAPublicKey():
            key = RSAAlgorithm.to_jwk(public, as_dict=True)
        case ec.EllipticCurvePublicKey():
            key = ECAlgorithm.to_jwk(public, as_dict=True)
        case _:
            key = OKPAlgorithm.to_jwk(public, as_dict=True)
    return {part: value for part, value in key.items() if part != "key_ops"} | {"kid": name}


def claims(who: str, **changes: Any) -> dict[str, Any]:
    """Claims of a good token; `...` leaves one out."""
    base = {"client_id": who, "exp": time.time() + 600} | changes
    return {name: value for name, value in base.items() if value is not ...}


def signed(name: str, algorithm: str, who: str, kid: str | None = None, **changes: Any) -> str:
    headers = None if kid is None else {"kid": kid}
    return jwt.encode(claims(who, **changes), private_key(name), algorithm=algorithm, headers=headers)


def by_hand(header: dict[str, Any], body: dict[str, Any], secret: bytes = SECRET) -> str:
    """A token as only an attacker writes it: the header says what it likes, the signature is HMAC-SHA256."""
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (header, body)
    ]
    text = ".".join(parts)
    signature = hmac.digest(secret, text.encode(), hashlib.sha256)
    return f"{text}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def accepted(server: Server, who: str, token: str) -> None:
    with server.peer() as peer:
        assert peer.connect(who, token)["client_id"] == who


def refused(server: Server, who: str, token: str) -> str:
    """The connect is refused and the socket closed; the message."""
    with server.peer() as peer:
        peer.send("connect", {"token": token, "client_id": who})
        error = peer.expect_error("auth_failed")
        peer.expect_close(4001)
    assert error.keys() == {"code", "message"}
    message: str = error["message"]
    assert len(token) < 20 or token not in message
    return message


# -- a shared secret -----------------------------------------------------------------------------------------


HS256 = {"alg": "HS256", "typ": "JWT"}


@pytest.mark.req("AUTH-01", "AUTH-03", "AUTH-04", "ERR-01", "CONN-10")
@pytest.mark.parametrize(
    ("header", "changes"),
    [
        pytest.param({"alg": "none"}, {}, id="alg none"),
        pytest.param({"alg": "None"}, {}, id="alg None"),
        pytest.param({"alg": "HS1"}, {}, id="unknown alg"),
        pytest.param({"alg": "RS256"}, {}, id="alg of another family"),
        pytest.param({}, {}, id="no alg"),
        pytest.param(HS256, {"exp": ...}, id="no exp"),
        pytest.param(HS256, {"exp": 1}, id="expired long ago"),
        pytest.param(HS256, {"exp": "later"}, id="exp no number"),
        pytest.param(HS256, {"exp": None}, id="exp null"),
        pytest.param(HS256, {"nbf": 9_999_999_999}, id="not yet valid"),
        pytest.param(HS256, {"client_id": ...}, id="no client_id"),
        pytest.param(HS256, {"client_id": ""}, id="empty client_id"),
        pytest.param(HS256, {"client_id": 5}, id="client_id no string"),
        pytest.param(HS256, {"client_id": "somebody else"}, id="another client_id"),
        pytest.param(HS256, {"sub": "x", "client_id": ["x"]}, id="client_id a list"),
    ],
)
def test_a_token_that_proves_nothing_is_refused(
    server: Server, who: str, header: dict[str, Any], changes: dict[str, Any]
) -> None:
    refused(server, who, by_hand(header, claims(who, **changes)))


@pytest.mark.req("AUTH-01")
def test_a_changed_or_foreign_signature_is_refused(server: Server, who: str) -> None:
    token = server.token(who)
    head, body, signature = token.split(".")
    other = by_hand(HS256, claims("admin")).split(".")[1]
    for bad in (
        "", "x", "..", f"{head}.{body}.", f"{head}.{body}", f"{head}.{other}.{signature}", token + "A",
        by_hand(HS256, claims(who), secret=SECRET[:-1] + b"!"), by_hand(HS256, claims(who), secret=b""),
        f"{head}.{body}.{signature[:-4]}AAAA", token.upper(), f" {token}",
    ):  # fmt: skip
        refused(server, who, bad)
    accepted(server, who, by_hand(HS256, claims(who)))  # the hand that writes the bad ones writes good ones


@pytest.mark.req("AUTH-02")
@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_shared_secret_serves_the_hmac_family(server: Server, who: str, algorithm: str) -> None:
    accepted(server, who, jwt.encode(claims(who), SECRET, algorithm=algorithm))


@pytest.mark.req("AUTH-03")
def test_the_claimed_client_id_must_be_the_tokens(server: Server, who: str) -> None:
    assert "another client_id" in refused(server, f"{who}-x", server.token(who))
    refused(server, "", server.token(who))
    refused(server, who.upper(), server.token(who))


@pytest.mark.req("AUTH-03")
@pytest.mark.parametrize("payload", [{"client_id": "x"}, {"token": "x"}, {"token": 5, "client_id": "x"}, {}])
def test_a_connect_without_token_or_client_id_is_bad_request(server: Server, payload: dict[str, Any]) -> None:
    with server.peer() as peer:
        peer.send("connect", payload)
        peer.expect_error("bad_request")


# -- after connect -------------------------------------------------------------------------------------------


@pytest.mark.req("AUTH-04", "CONN-10")
def test_the_end_of_a_token_ends_an_idle_connection(server: Server, who: str, part: str) -> None:
    def idle(ttl_s: float) -> None:
        with server.peer() as peer, server.client(f"{who}-b") as other:
            ends = time.time() + ttl_s
            peer.connect(who, server.token(who, ttl_s=ttl_s), supported_profiles=["compatibility"])
            peer.subscribe(part)
            other.commit([part], set_event("n", 1))
            peer.expect("event_broadcast")
            error = peer.expect_error("auth_failed")
            assert ends - 0.02 <= time.time() < ends + ttl_s
            assert "expired" in error["message"]
            peer.expect_close(4001)
            other.commit([part], set_event("n", 2))

    in_a_window(idle, *TTLS_S)


@pytest.mark.req("AUTH-04")
def test_activity_does_not_lengthen_a_token(server: Server, who: str, part: str) -> None:
    def active(ttl_s: float) -> None:
        with server.peer() as peer:
            ends = time.time() + ttl_s
            peer.connect(who, server.token(who, ttl_s=ttl_s), supported_profiles=["compatibility"])
            while time.time() < ends - ttl_s / 6:
                peer.send("heartbeat", {})
                peer.expect("heartbeat_ack")
            peer.expect_error("auth_failed")
            peer.expect_close(4001)
        assert time.time() < ends + ttl_s
        accepted(server, who, server.token(who))

    in_a_window(active, *TTLS_S)


def speaking_for(kind: str, part: str, other: str) -> dict[str, Any]:
    """A request whose payload, or whose second item, names another client."""
    good, bad = item([part], tree_event("A")), item([part], tree_event("B"), client_id=other)
    requests: dict[str, dict[str, Any]] = {
        "heartbeat": {"client_id": other},
        "disconnect": {"client_id": other},
        "sync": {"partitions": [part], "since_committed_id": 0, "client_id": other},
        "submit_event": bad,
        "submit_events": {"events": [good], "client_id": other},
        "item of submit_events": {"events": [good, bad, item([part], tree_event("C"))]},
    }
    return requests[kind]


@pytest.mark.req("AUTH-05", "ERR-01", "CONN-10")
@pytest.mark.parametrize(
    "kind", ["heartbeat", "disconnect", "sync", "submit_event", "submit_events", "item of submit_events"]
)
def test_speaking_for_another_ends_the_connection_and_takes_no_effect(
    server: Server, who: str, part: str, kind: str
) -> None:
    with server.client(f"{who}-other") as other, server.client(who) as peer:
        other.subscribe(part)
        peer.send(kind.rpartition(" ")[2], speaking_for(kind, part, f"{who}-other"))
        peer.expect_error("auth_failed")
        peer.expect_close(4001)
        other.expect_quiet()
        assert other.history([part]) == []


@pytest.mark.req("AUTH-05")
def test_naming_oneself_or_nobody_is_fine(server: Server, who: str, part: str) -> None:
    with server.client(who) as peer:
        for named in ({}, {"client_id": who}, {"client_id": None}):
            peer.send("submit_event", item([part], set_event("x", 1), **named))
            peer.expect("event_committed")
            peer.send("submit_events", {"events": [item([part], set_event("x", 1), client_id=who)], **named})
            peer.expect("submit_events_result")
            peer.send("sync", {"partitions": [part], "since_committed_id": 0, **named})
            peer.expect("sync_response")
            peer.send("heartbeat", named)
            peer.expect("heartbeat_ack")


@pytest.mark.req("AUTH-06")
@pytest.mark.parametrize("name", ["plain", "ünï 😀 \\ \" '", "x" * 200])
def test_events_carry_the_authenticated_client_id(server: Server, who: str, part: str, name: str) -> None:
    me = f"{who} {name}"
    with server.client(f"{who}-b") as other, server.client(me) as peer:
        other.subscribe(part)
        peer.send("submit_event", item([part], {**tree_event("A"), "client_id": "forged"}))
        assert peer.expect("event_committed")["client_id"] == me
        assert other.expect("event_broadcast")["client_id"] == me
        assert [held["client_id"] for held in other.history([part])] == [me]
        peer.send("submit_event", item([part], tree_event("A")))
        assert peer.expect("event_rejected")["client_id"] == me


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
    file.write_text(json.dumps({"keys": [jwk(name) for name in names]}))
    server = keyed(tmp_path / "data", "--jwks", str(file))
    server.start()
    try:
        for name, algorithm in names.items():
            accepted(server, who, signed(name, algorithm, who, kid=name))
        refused(server, who, signed("rsa-1", "RS256", who, kid="ec-1"))
        refused(server, who, signed("ec-2", "ES256", who, kid="ec-1"))
        refused(server, who, by_hand({"alg": "HS256", "kid": "rsa-1"}, claims(who), secret=pem("rsa-1")))
        refused(server, who, signed("ec-2", "ES256", who, kid="ec-2"))
        file.write_text(json.dumps({"keys": [jwk("ec-2")]}))
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
