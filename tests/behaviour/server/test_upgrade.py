"""The HTTP request that opens a WebSocket (RFC 6455, 4.2): which are upgraded, and how the others are refused."""

from __future__ import annotations

import base64
import hashlib

import pytest

from tests.behaviour.server.frames import UPGRADE, UPGRADE_LINES, answer_to, request
from tests.behaviour.server.harness import Server

LINE, HOST, UPGRADES, CONNECTION, KEY, VERSION = UPGRADE_LINES
ACCEPT = base64.b64encode(
    hashlib.sha1(KEY.partition(b": ")[2] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
)


def but(line: bytes, *instead: bytes) -> bytes:
    """The request with other lines in place of one."""
    return request(*(new for old in UPGRADE_LINES for new in (instead if old == line else (old,))))


ACCEPTED = {
    "the plain request": UPGRADE,
    "Connection as Firefox writes it": but(CONNECTION, b"Connection: keep-alive, Upgrade"),
    "two Connection headers": but(CONNECTION, b"Connection: keep-alive", b"Connection: Upgrade"),
    "several protocols in Upgrade": but(UPGRADES, b"Upgrade: h2c, WebSocket"),
    "names and tokens in other cases": but(UPGRADES, b"uPGRADE:WEBSOCKET"),
    "a query": but(LINE, b"GET /sync?client=1 HTTP/1.1"),
    "a subprotocol, which is not chosen": request(*UPGRADE_LINES, b"Sec-WebSocket-Protocol: insieme"),
    "an extension, which is not chosen": request(
        *UPGRADE_LINES, b"Sec-WebSocket-Extensions: permessage-deflate"
    ),
    "no body, and saying so": request(*UPGRADE_LINES, b"Content-Length: 0"),
    "bytes beyond ASCII in a header": request(*UPGRADE_LINES, b"X-Name: \xc3\xa4\xff"),
    "a hundred headers": request(*UPGRADE_LINES, *(b"X-%d: x" % n for n in range(100))),
    "a header of 15 KiB": request(*UPGRADE_LINES, b"X-Long: " + b"x" * 15_000),
}

REFUSED = {
    404: {
        "another path": but(LINE, b"GET /other HTTP/1.1"),
        "a longer path": but(LINE, b"GET /sync/ HTTP/1.1"),
        "the path in capitals": but(LINE, b"GET /SYNC HTTP/1.1"),
        "the path encoded": but(LINE, b"GET /%73ync HTTP/1.1"),
        "a path with dots": but(LINE, b"GET /x/../sync HTTP/1.1"),
        # No browser and no client sends an absolute one to a server.
        "the whole address": but(LINE, b"GET http://x/sync HTTP/1.1"),
    },
    426: {
        "no version": but(VERSION),
        "version 12": but(VERSION, b"Sec-WebSocket-Version: 12"),
        "version 8": but(VERSION, b"Sec-WebSocket-Version: 8"),
        "two versions in one header": but(VERSION, b"Sec-WebSocket-Version: 13, 8"),
        "two version headers": but(VERSION, VERSION, b"Sec-WebSocket-Version: 8"),
        "the right version twice": but(VERSION, VERSION, VERSION),
    },
    400: {
        "no Upgrade": but(UPGRADES),
        "Upgrade to something else": but(UPGRADES, b"Upgrade: h2c"),
        "Upgrade to websockets": but(UPGRADES, b"Upgrade: websockets"),
        "no Connection": but(CONNECTION),
        "Connection: close": but(CONNECTION, b"Connection: close"),
        "Connection: Upgraded": but(CONNECTION, b"Connection: Upgraded"),
        "no key": but(KEY),
        "an empty key": but(KEY, b"Sec-WebSocket-Key: "),
        "a key of 15 bytes": but(KEY, b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAA"),
        "a key of 17 bytes": but(KEY, b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAAA="),
        "a key that is not base64": but(KEY, b"Sec-WebSocket-Key: !!!!!!!!!!!!!!!!!!!!!!=="),
        "a key beyond ASCII": but(KEY, b"Sec-WebSocket-Key: \xff" + b"A" * 21 + b"=="),
        "two keys": but(KEY, KEY, KEY),
        "no Host": but(HOST),
        "two Hosts": but(HOST, HOST, HOST),
        "POST": but(LINE, b"POST /sync HTTP/1.1"),
        "the method in small letters": but(LINE, b"get /sync HTTP/1.1"),
        "HTTP/1.0": but(LINE, b"GET /sync HTTP/1.0"),
        "HTTP/2.0": but(LINE, b"GET /sync HTTP/2.0"),
        "no version of HTTP": but(LINE, b"GET /sync"),
        "a space in the target": but(LINE, b"GET /sync x HTTP/1.1"),
        "an empty target": but(LINE, b"GET  HTTP/1.1"),
        "a header without a colon": request(*UPGRADE_LINES, b"nonsense"),
        "a header without a name": request(*UPGRADE_LINES, b": x"),
        "a space before the colon": but(HOST, b"Host : x"),
        "a folded header": request(*UPGRADE_LINES, b"X-Folded: a", b" b"),
        "NUL in a header": request(*UPGRADE_LINES, b"X-Nul: \0"),
        "a bare CR in a header": request(*UPGRADE_LINES, b"X-Cr: a\rOrigin: b"),
        "a bare LF in a header": request(*UPGRADE_LINES, b"X-Lf: a\nOrigin: b"),
        "a body": request(*UPGRADE_LINES, b"Content-Length: 5") + b"hello",
        "two lengths of a body": request(*UPGRADE_LINES, b"Content-Length: 0", b"Content-Length: 0"),
        "a chunked body": request(*UPGRADE_LINES, b"Transfer-Encoding: chunked"),
        "too many headers": request(*UPGRADE_LINES, *(b"X-%d: x" % n for n in range(129))),
        "a start of TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200) + b"\r\n\r\n",
        "a preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    },
    # Past 16 KiB the socket is closed, and nothing more is read.
    0: {
        "a header of 17 KiB": request(*UPGRADE_LINES, b"X-Long: " + b"x" * 17_000),
        "headers without an end": request(LINE, *(b"X-%d: %b" % (n, b"x" * 1000) for n in range(40)))[:-4],
        "a target of 20 KiB": but(LINE, b"GET /sync?" + b"x" * 20_000 + b" HTTP/1.1"),
    },
}  # fmt: skip


@pytest.mark.parametrize("sent", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_a_request_that_the_standard_allows_is_upgraded(server: Server, sent: bytes) -> None:
    status, answer = answer_to(server.url, sent)
    assert status == 101, answer
    assert b"Sec-WebSocket-Accept: " + ACCEPT in answer
    head = answer.lower()
    assert b"sec-websocket-protocol" not in head
    assert b"sec-websocket-extensions" not in head


@pytest.mark.parametrize(
    ("status", "sent"),
    [
        pytest.param(status, sent, id=f"{status}: {name}")
        for status, cases in REFUSED.items()
        for name, sent in cases.items()
    ],
)
def test_any_other_request_is_refused(server: Server, status: int, sent: bytes) -> None:
    answered, answer = answer_to(server.url, sent)
    assert answered == status, answer
    if status:
        head = answer.partition(b"\r\n\r\n")[0].lower()
        assert b"connection: close" in head
        for internal in (b"traceback", b"unisono", b".py"):
            assert internal not in answer.lower()
    if status == 426:
        assert b"sec-websocket-version: 13" in head


def test_after_all_that_the_server_serves(server: Server, who: str, part: str) -> None:
    with server.client(who) as peer:
        assert peer.sync([part])["events"] == []
