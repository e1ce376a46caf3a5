"""Who gets into the console: nobody without the token, no page of another site, and what every answer forbids."""

from __future__ import annotations

import contextlib
import json
import socket
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.behaviour.server.harness import Server
from tests.commands import unisono
from tests.console.operator import PAGE, Operator
from tests.waiting import PATIENCE_S
from unisono.console.sessions import SESSIONS_MAX
from unisono.console.site import STATIC

READS = (
    *("now", "series", "events", "event", "times", "refusals", "partitions", "history", "state"),
    *("difference", "changes", "connections", "model", "pipeline", "unknown"),
)


def test_without_the_token_everything_is_401(operator: Operator) -> None:
    for headers in ({}, PAGE, {**PAGE, "Cookie": "unisono_console_80=x"}, {"Authorization": "Bearer wrong"}):
        for name in READS:
            assert operator.send("GET", f"/api/{name}", headers=headers).status == 401, name
        for name in ("kick", "preview", "logout"):
            assert operator.send("POST", f"/api/{name}", {}, headers).status == 401, name
        assert operator.send("GET", "/", headers=headers).status == 401
        public = {"login.html", "login.js", "console.css"}
        for file in sorted(path.name for path in STATIC.iterdir()):
            answer = operator.send("GET", f"/console/{file}", headers=headers)
            assert answer.status == (401 if file not in public else 404 if file.endswith("html") else 200), (
                file
            )


def test_a_session_opens_the_pages_and_ends_with_logout(operator: Operator) -> None:
    page = operator.login()
    assert b"app.js" in operator.send("GET", "/", headers=page).body
    assert operator.send("GET", "/console/app.js", headers=page).status == 200
    assert operator.send("GET", "/api/now", headers=page).status == 200
    assert operator.send("GET", "/console/..%2fsite.py", headers=page).status == 404
    assert operator.send("POST", "/api/logout", {}, page).status == 200
    assert operator.send("GET", "/api/now", headers=page).status == 401


def test_the_cookie_is_for_this_server_and_no_script(operator: Operator) -> None:
    answer = operator.send("POST", "/api/login", {"token": operator.token}, PAGE)
    cookie = answer.headers["Set-Cookie"]
    for part in ("HttpOnly", "SameSite=Strict", "Path=/", "Max-Age="):
        assert part in cookie
    assert operator.token not in cookie
    assert operator.token.encode() not in answer.body


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X-Unisono-Console": ""}, 200),
        ({}, 401),  # a form, an image or a script of another site
        ({**PAGE, "Origin": "http://evil.example"}, 401),
        ({**PAGE, "Sec-Fetch-Site": "same-site"}, 401),  # another port of the same machine
        ({**PAGE, "Sec-Fetch-Site": "cross-site"}, 401),
        ({**PAGE, "Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_a_page_of_another_origin_cannot_use_a_session(
    operator: Operator, headers: dict[str, str], status: int
) -> None:
    cookie = {"Cookie": operator.login()["Cookie"]}
    assert operator.send("GET", "/api/now", headers={**headers, **cookie}).status == status
    kicked = operator.send("POST", "/api/kick", {"kind": "client", "name": "nobody"}, {**headers, **cookie})
    assert kicked.status == status


def test_logins_are_refused(operator: Operator) -> None:
    for body, headers, status in (
        ({"token": "wrong"}, PAGE, 401),
        ({"token": "\ud800"}, PAGE, 400),
        ({"token": ""}, PAGE, 401),
        ({"token": 1}, PAGE, 400),
        ({}, PAGE, 400),
        ({"token": operator.token}, {}, 403),
        ({"token": operator.token}, {**PAGE, "Origin": "http://evil.example"}, 403),
        ({"token": "x" * 100_000}, PAGE, 413),
    ):
        answer = operator.send("POST", "/api/login", body, headers)
        assert answer.status == status, (body, headers)
        assert "Set-Cookie" not in answer.headers


def test_a_body_that_does_not_come_ends_and_delays_nobody(operator: Operator, server: Server) -> None:
    address = urlsplit(server.admin)
    head = "POST /api/login HTTP/1.1\r\nHost: x\r\nX-Unisono-Console: 1\r\nContent-Length: 100\r\n\r\n{"
    with contextlib.ExitStack() as open_sockets:
        slow = [
            open_sockets.enter_context(socket.create_connection((address.hostname, address.port)))
            for _ in range(100)
        ]
        for each in slow:
            each.sendall(head.encode())
            each.settimeout(PATIENCE_S)
        operator.get("now")
        operator.login()
        for each in slow:
            assert each.recv(100).startswith(b"HTTP/1.1 400")


def test_sessions_are_bounded(operator: Operator) -> None:
    first = operator.login()
    for _ in range(SESSIONS_MAX):
        last = operator.login()
    assert operator.send("GET", "/api/now", headers=first).status == 401
    assert operator.send("GET", "/api/now", headers=last).status == 200


def test_every_answer_forbids_inline_code_frames_and_caching_of_data(operator: Operator) -> None:
    for path in ("/", "/console/login.js", "/api/now", "/api/unknown"):
        headers = operator.send("GET", path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        if path.startswith("/api/"):
            assert headers["Cache-Control"] == "no-store"


def test_the_package_has_every_file() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["unisono"]
    package = STATIC.parents[1]
    packed = {path for pattern in patterns for path in package.glob(pattern)}
    assert {path for path in STATIC.rglob("*") if path.is_file()} <= packed


def test_pages_have_no_inline_code_and_no_foreign_address() -> None:
    for path in STATIC.iterdir():
        text = path.read_text("utf-8")
        if path.name.startswith("uplot"):
            continue
        assert "innerHTML" not in text, path.name
        assert "https://" not in text, path.name
        if path.suffix == ".html":
            assert "<style" not in text
            assert "onclick" not in text


def test_the_link_logs_in(server: Server, operator: Operator) -> None:
    done = unisono("console", "--data", str(server.data))
    assert done.stdout == f"{server.admin}/#token={operator.token}\n"
    assert (
        unisono(
            "console",
            "--data",
            "/nonexistent",
        ).exit_code
        == 1
    )


def test_the_console_can_be_switched_off(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = tmp_path_factory.mktemp("off") / "data"
    server = Server(data, "--no-console", "--model", "open").start()
    try:
        operator = Operator(server)
        for path in ("/", "/api/now", "/console/login.js"):
            assert operator.send("GET", path).status == 404
        found = json.loads(operator.send("GET", "/connections").body)
        assert found == {"connections": [], "silent_nodes": []}
        for limit in ("0", "-1", "1e3", "10001", "1" * 5000):
            assert operator.send("GET", f"/connections?limit={limit}").status == 400
    finally:
        server.kill()
