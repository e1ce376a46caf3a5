"""Addresses that the demo and the printed commands use."""

from __future__ import annotations

import pytest

from unisono.demo.site import reachable_url


@pytest.mark.parametrize(
    ("url", "host", "expected"),
    [
        ("ws://127.0.0.1:8040/sync", "localhost", "ws://127.0.0.1:8040/sync"),
        ("ws://0.0.0.0:8040/sync", "localhost", "ws://localhost:8040/sync"),
        ("ws://[::]:8040/sync", "::1", "ws://[::1]:8040/sync"),
        ("http://sync.example:8041", "localhost", "http://sync.example:8041"),
    ],
)
def test_a_server_on_all_addresses_is_named_by_one_that_can_be_reached(
    url: str, host: str, expected: str
) -> None:
    assert reachable_url(url, host) == expected
