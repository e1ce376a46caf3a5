"""Verification keys from a URL: a host that is slow, down, wrong or hammered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from tests.front.tokens import (
    NOW_S,
    jwk,
    key_set,
    signed,
    unusable,
    verifier,
)
from tests.ports import free_port
from unisono.front.auth.keys import MAX_KEY_FILE_BYTES, KeySourceError
from unisono.front.auth.sources import JwksUrl
from unisono.protocol.errors import AuthFailed


class KeyHost:
    """A real HTTP server on the loopback interface that publishes a key set and counts who asks."""

    def __init__(self) -> None:
        self.body = key_set(jwk("rsa", "k1"))
        self.status = 200
        self.headers: dict[str, str] = {}
        self.requests = 0
        self.asked = asyncio.Event()
        self.gate: asyncio.Event | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/jwks.json"

    async def answer(self, request: web.Request) -> web.Response:
        self.requests += 1
        self.asked.set()
        if self.gate is not None:
            await self.gate.wait()
        return web.Response(body=self.body, status=self.status, headers=self.headers)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/jwks.json", self.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            yield
        finally:
            await runner.cleanup()


@pytest.mark.req("AUTH-02")
def test_a_key_set_is_fetched_once_and_again_when_a_new_key_id_appears() -> None:
    async def scenario() -> None:
        host = KeyHost()
        async with host.serving():
            using = verifier(JwksUrl(host.url))
            for second in range(5):
                await using.verify(signed("rsa", "RS256", "k1"), "alice", NOW_S + second)
            assert host.requests == 1
            host.body = key_set(jwk("rsa", "k1"), jwk("ec", "k2"))
            await using.verify(signed("ec", "ES256", "k2"), "alice", NOW_S + 10)
            await using.verify(signed("rsa", "RS256", "k1"), "alice", NOW_S + 11)
            assert host.requests == 2

    asyncio.run(scenario())


@pytest.mark.req("AUTH-02")
def test_garbage_key_ids_cannot_hammer_the_url() -> None:
    async def scenario() -> None:
        host = KeyHost()
        async with host.serving():
            using = verifier(JwksUrl(host.url, min_refresh_s=10))
            for step in range(200):
                with pytest.raises(AuthFailed, match="unknown key id"):
                    await using.verify(signed("ed", "EdDSA", f"garbage {step}"), "alice", NOW_S + step / 10)
            assert host.requests == 2

    asyncio.run(scenario())


@pytest.mark.req("AUTH-02")
def test_connections_that_arrive_together_share_one_fetch_and_none_can_cancel_it() -> None:
    async def scenario() -> None:
        host = KeyHost()
        host.gate = asyncio.Event()
        async with host.serving():
            using = verifier(JwksUrl(host.url))
            token = signed("rsa", "RS256", "k1")
            waiting = [asyncio.create_task(using.verify(token, "alice", NOW_S)) for _ in range(20)]
            await host.asked.wait()
            waiting[0].cancel()
            await asyncio.wait(waiting[:1])
            host.gate.set()
            answers = await asyncio.gather(*waiting[1:])
            assert {identity.client_id for identity in answers} == {"alice"}
            assert host.requests == 1

    asyncio.run(scenario())


@pytest.mark.req("AUTH-02", "AUTH-08")
def test_while_the_key_host_is_down_known_keys_still_work(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        host = KeyHost()
        host.port = free_port()
        async with host.serving():
            pass
        using = verifier(JwksUrl(host.url))
        old, new = signed("rsa", "RS256", "k1"), signed("ec", "ES256", "k2")
        with pytest.raises(AuthFailed, match="signing keys are unavailable"):
            await using.verify(old, "alice", NOW_S)
        async with host.serving():
            await using.verify(old, "alice", NOW_S + 10)
        with pytest.raises(AuthFailed, match="signing keys are unavailable"):
            await using.verify(new, "alice", NOW_S + 20)
        await using.verify(old, "alice", NOW_S + 20)
        later = signed("rsa", "RS256", "k1", exp=NOW_S + 100_000)
        await using.verify(later, "alice", NOW_S + 90_000)
        assert old not in caplog.text
        assert new not in caplog.text
        assert host.url in caplog.text

    with caplog.at_level(logging.DEBUG):
        asyncio.run(scenario())


@pytest.mark.req("AUTH-02")
def test_a_key_the_host_withdraws_is_forgotten_within_its_age() -> None:
    async def scenario() -> None:
        host = KeyHost()
        async with host.serving():
            using = verifier(JwksUrl(host.url, max_age_s=30))
            token = signed("rsa", "RS256", "k1")
            await using.verify(token, "alice", NOW_S)
            host.body = key_set(jwk("ec", "k2"))
            await using.verify(token, "alice", NOW_S + 29)
            with pytest.raises(AuthFailed, match="unknown key id"):
                await using.verify(token, "alice", NOW_S + 30)

    asyncio.run(scenario())


@pytest.mark.req("AUTH-02")
def test_a_clock_set_back_does_not_stop_refreshes() -> None:
    async def scenario() -> None:
        host = KeyHost()
        async with host.serving():
            using = verifier(JwksUrl(host.url))
            token = signed("rsa", "RS256", "k1", iat=0)
            await using.verify(token, "alice", NOW_S)
            host.body = key_set(jwk("ec", "k2"))
            await using.verify(signed("ec", "ES256", "k2", iat=0), "alice", NOW_S - 3600)

    asyncio.run(scenario())


@pytest.mark.req("AUTH-02")
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"body": b" " * (MAX_KEY_FILE_BYTES + 1)}, "more than"),
        ({"status": 500}, "status 500"),
        ({"status": 302, "headers": {"Location": "/jwks.json"}}, "status 302"),
        ({"body": b"<html>"}, "not JSON"),
        ({"body": b"{}"}, "not a JWK Set"),
        ({"headers": {"Content-Encoding": "gzip"}}, "cannot be fetched"),
    ],
)
def test_an_answer_that_is_no_key_set_is_refused(change: dict[str, object], text: str) -> None:
    async def scenario() -> None:
        host = KeyHost()
        for name, value in change.items():
            setattr(host, name, value)
        async with host.serving():
            keys = JwksUrl(host.url)
            with pytest.raises(KeySourceError, match=text):
                await keys.prepare(NOW_S)
            with pytest.raises(AuthFailed, match="unavailable"):
                await verifier(keys).verify(signed("rsa", "RS256", "k1"), "alice", NOW_S)
            assert host.requests == 1

    asyncio.run(scenario())


@pytest.mark.req("AUTH-02")
def test_a_host_that_never_answers_is_given_up() -> None:
    async def scenario() -> None:
        host = KeyHost()
        host.gate = asyncio.Event()
        async with host.serving():
            keys = JwksUrl(host.url, timeout_s=0.05)
            with pytest.raises(KeySourceError, match=r"no answer within 0\.05 s"):
                await keys.prepare(NOW_S)
            host.asked.clear()
            hanging = JwksUrl(host.url)
            waiting = asyncio.create_task(hanging.prepare(NOW_S))
            await host.asked.wait()
            await hanging.close()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            host.gate.set()

    asyncio.run(scenario())


@pytest.mark.req("AUTH-02")
@pytest.mark.parametrize(
    "url", ["", "jwks.json", "file:///etc/passwd", "ftp://h/x", "https://", "http://[", "http://h:99999/"]
)
def test_a_url_that_cannot_name_a_key_host_is_refused(url: str) -> None:
    assert "must be http" in unusable(lambda: JwksUrl(url))
