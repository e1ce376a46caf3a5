"""`unisono token`: what it signs, and what it refuses to."""

from __future__ import annotations

import time
from pathlib import Path

import jwt
import pytest

from tests.behaviour.server.harness import SECRET, Server
from tests.cli.against_server import committed
from tests.commands import unisono


def test_a_token_says_what_it_was_asked_to(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET + b"\n")
    base = ["token", "--jwt-secret-file", str(secret), "--client-id", "carol"]
    made = unisono(
        *base, "--partition", "a", "--partition", "b", "--prefix", "team/", "--ttl", "60",
        "--algorithm", "HS512", "--issuer", "me", "--audience", "you",
    )  # fmt: skip
    assert made.exit_code == 0
    claims = jwt.decode(made.output.strip(), SECRET, algorithms=["HS512"], audience="you", issuer="me")
    assert claims["client_id"] == "carol"
    assert claims["allowed_partitions"] == ["a", "b"]
    assert claims["allowed_partition_prefixes"] == ["team/"]
    assert abs(claims["exp"] - 60 - time.time()) < 30

    silent = jwt.decode(unisono(*base).output.strip(), SECRET, algorithms=["HS256"])
    assert set(silent) == {"client_id", "iat", "exp"}
    assert silent["exp"] - silent["iat"] == 3600


@pytest.mark.req("AUTH-09", "AUTH-10", "AUTHZ-08")
def test_a_token_names_the_person_and_what_it_may_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    base = ["token", "--jwt-secret-file", str(secret), "--client-id", "phone"]
    made = unisono(
        *base, "--user", "carol", "--derived-ids", "--claim", "name=Carol C.", "--claim", 'roles=["a"]',
        "--read-partition", "news", "--read-prefix", "team/",
    )  # fmt: skip
    claims = jwt.decode(made.output.strip(), SECRET, algorithms=["HS256"])
    del claims["iat"], claims["exp"]
    assert claims == {
        "client_id": "phone", "sub": "carol", "derived_client_ids": True, "name": "Carol C.", "roles": ["a"],
        "readable_partitions": ["news"], "readable_partition_prefixes": ["team/"],
    }  # fmt: skip
    for wrong in (
        ["--user", ""],
        ["--user", "x" * 257],
        ["--claim", "a"],
        ["--claim", "=a"],
        ["--claim", "exp=1"],
    ):
        refused = unisono(*base, *wrong)
        assert refused.exit_code == 2, wrong
        assert wrong[0] in refused.output


def test_a_token_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    secret, short = tmp_path / "secret", tmp_path / "short"
    secret.write_bytes(SECRET)
    short.write_text("too short")
    base = ["token", "--client-id", "carol", "--jwt-secret-file"]
    cases: list[tuple[list[str], int, str]] = [
        ([*base, str(short)], 1, "32"),
        ([*base, str(tmp_path / "none")], 2, str(tmp_path / "none")),
        ([*base, str(secret), "--ttl", "0"], 2, "--ttl"),
        ([*base, str(secret), "--algorithm", "none"], 1, "none"),
        (
            [*base, str(secret), "--partition", "x" * 129],
            2,
            "--partition: a partition's name has at most 128",
        ),
        (
            [*base, str(secret), "--prefix", "\u0300" * 3000],
            2,
            "--prefix: a partition's name has at most 128",
        ),
        (["token", "--jwt-secret-file", str(secret), "--client-id", ""], 2, "--client-id"),
        (["token", "--jwt-secret-file", str(secret), "--client-id", "x" * 257], 2, "more than 256 bytes"),
        (["token", "--jwt-secret-file", str(secret)], 2, "--client-id"),
    ]
    for arguments, code, words in cases:
        refused = unisono(*arguments)
        assert refused.exit_code == code, refused.output
        assert words in refused.output
        assert SECRET.decode() not in refused.output


@pytest.mark.req("AUTHZ-01")
def test_a_token_of_the_command_opens_the_server(server: Server, part: str) -> None:
    made = unisono(
        "token", "--jwt-secret-file", str(server.secret_file), "--client-id", "dan", "--prefix", part
    )
    token = made.output.strip()
    told = unisono(
        "submit", "--url", server.url, "--token", token, "--partition", f"{part}/1", "--set", "settings.a=1"
    )
    assert committed(told)
    refused = unisono("tail", "--url", server.url, "--token", token, "--partition", "elsewhere", "--once")
    assert refused.exit_code == 1
    assert "forbidden" in refused.output
