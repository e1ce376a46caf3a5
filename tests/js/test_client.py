"""The tests of the JavaScript client that are written in JavaScript."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

NodeTests = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.req("CLIENT-03", "CLIENT-04", "CLIENT-08", "CLIENT-13")
def test_against_a_real_server(node_tests: NodeTests) -> None:
    node_tests("packages/client/test/client.test.mjs")


@pytest.mark.req("CLIENT-01", "CLIENT-05", "CLIENT-12")
def test_stores(node_tests: NodeTests) -> None:
    node_tests("packages/client/test/stores.test.mjs")
