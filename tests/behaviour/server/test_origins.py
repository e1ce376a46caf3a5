"""The list of web origins: a page of another site is refused before its upgrade; who is no browser is not asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.behaviour.server.frames import UPGRADE_LINES, answer_to, request
from tests.behaviour.server.harness import Server, running
from unisono.cli.settings import ConfigError, load
from unisono.front.upgrades import MAX_ORIGIN_CHARS_LOGGED, MAX_ORIGINS_LOGGED
from unisono.web_origins import normal_origin

APP = "https://app.example.com"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Pages of three origins may connect."""
    data: Path = tmp_path_factory.mktemp("guarded") / "data"
    listed = f"{APP},HTTP://Localhost:5173,https://[2001:DB8::1]:8443"
    with running(data, "--access-default", "allow", "--allowed-origins", listed) as started:
        yield started


def asked(server: Server, headers: Sequence[str | bytes]) -> tuple[int, bytes]:
    """Status and whole answer of a request for an upgrade with these lines among its headers."""
    lines = (line.encode() if isinstance(line, str) else line for line in headers)
    return answer_to(server.url, request(*UPGRADE_LINES, *lines))


@pytest.mark.parametrize(
    "origin",
    [
        APP, "HTTPS://APP.Example.COM", f"{APP}:443", "http://localhost:5173", "https://[2001:db8::1]:8443",
        f"  {APP}\t",
    ],
)  # fmt: skip
def test_a_listed_origin_is_upgraded(guarded: Server, origin: str) -> None:
    assert asked(guarded, [f"Origin: {origin}"])[0] == 101


REFUSED: Sequence[Sequence[str | bytes]] = [
    ["Origin: https://evil.example"],
    ["Origin: http://app.example.com"],
    [f"Origin: {APP}:8443"],
    [f"Origin: {APP}."],
    [f"Origin: {APP}.evil.example"],
    ["Origin: https://evil.example/https://app.example.com"],
    [f"Origin: {APP}@evil.example"],
    [f"Origin: {APP}/"],
    ["Origin: https://xapp.example.com"],
    ["Origin: https://app.example.com:99999"],
    ["Origin: app.example.com"],
    ["Origin: null"],
    ["Origin: "],
    ["Origin: *"],
    ["Origin: http://localhost"],
    [f"Origin: {APP}", "Origin: https://evil.example"],
    ["Origin: https://evil.example", f"Origin: {APP}"],
    [f"Origin: {APP}", f"Origin: {APP}"],
    [f"Origin: {APP}, https://evil.example"],
    [f"Origin: {APP} https://evil.example"],
    [f"oRiGiN: https://evil.example:443{'0' * 9000}"],
    [f"Origin: https://{'a' * 12_000}.example"],
    [b"Origin: https://app.ex\xc3\xa4mple.com"],
    [b"Origin: \xff\xfe"],
]


@pytest.mark.parametrize("headers", REFUSED, ids=lambda headers: repr(headers)[:60])
def test_any_other_origin_gets_403(guarded: Server, headers: Sequence[str | bytes]) -> None:
    before = guarded.metric("unisono_origins_refused_total")
    status, answer = asked(guarded, headers)
    assert status == 403
    assert b"connection: close" in answer.lower()
    assert b"evil" not in answer
    assert guarded.metric("unisono_origins_refused_total") == before + 1


def test_a_client_without_an_origin_is_never_refused_for_it(guarded: Server, who: str) -> None:
    assert asked(guarded, [])[0] == 101
    with guarded.client(who) as peer:
        peer.send("heartbeat", {})
        peer.expect("heartbeat_ack")


def test_a_header_of_an_older_version_is_no_way_around_the_list(guarded: Server) -> None:
    """Version 8 had its origin elsewhere."""
    older = request(
        *UPGRADE_LINES[:-1], b"Sec-WebSocket-Version: 8", b"Sec-WebSocket-Origin: https://evil.example"
    )
    assert answer_to(guarded.url, older)[0] == 426


def test_without_a_list_any_origin_is_upgraded(server: Server) -> None:
    for headers in (["Origin: https://evil.example"], ["Origin: null"], ["Origin: a", "Origin: b"]):
        assert asked(server, headers)[0] == 101


def test_refused_origins_are_logged_once_and_not_without_end(tmp_path: Path) -> None:
    with running(tmp_path / "data", "--allowed-origins", APP) as server:
        for number in range(MAX_ORIGINS_LOGGED + 20):
            for _ in range(2):
                assert asked(server, [f"Origin: https://{number}.example"])[0] == 403
        assert asked(server, [b"Origin: \xe2\x80\xae" + b"x" * 9000])[0] == 403
        lines = [line for line in server.log.read_text().splitlines() if "allowed_origins" in line]
        assert len(lines) == MAX_ORIGINS_LOGGED
        assert "not named" in lines[-1]
        assert max(map(len, lines)) < MAX_ORIGIN_CHARS_LOGGED + 200
        assert server.metric("unisono_origins_refused_total") == 2 * (MAX_ORIGINS_LOGGED + 20) + 1


@pytest.mark.parametrize(
    "origin",
    ["*", "null", "app.example.com", f"{APP}/", f"{APP}/path", "https://*.example.com", "https://", "https://a:b",
     "https://ä.example", "https://user@host", "https://a b"],
)  # fmt: skip
def test_a_list_with_what_is_no_origin_is_a_configuration_error(origin: str) -> None:
    with pytest.raises(ConfigError, match="allowed_origins"):
        load(None, {}, {"allowed_origins": origin})


def test_the_list_is_an_option_a_key_and_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "unisono.toml"
    file.write_text('allowed_origins = ["https://a.example", "https://b.example:8443"]\n')
    listed = ("https://a.example", "https://b.example:8443")
    assert load(file, {}, {}).allowed_origins == listed
    assert load(None, {"UNISONO_ALLOWED_ORIGINS": ", ".join(listed)}, {}).allowed_origins == listed
    assert load(None, {}, {"allowed_origins": ",".join(listed)}).allowed_origins == listed
    assert load(None, {}, {}).allowed_origins == ()


def test_origins_are_compared_as_browsers_write_them() -> None:
    assert normal_origin("HTTPS://App.Example.com:0443") == APP
    assert normal_origin("http://a:80") == "http://a"
    assert normal_origin("http://a:443") == "http://a:443"
    assert normal_origin("chrome-extension://abcdef") == "chrome-extension://abcdef"
    for text in ("null", "", "https://a\n", "https://a:", "//a", "https:///", "https://a?b", "https://a#b"):
        assert normal_origin(text) is None
