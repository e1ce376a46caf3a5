"""Extensions: asked for in connect, granted by name, invisible to everybody else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.behaviour.server.harness import Server
from unisono.protocol.extensions import EXTENSIONS


def connected(server: Server, who: str, **more: Any) -> dict[str, Any]:
    with server.peer() as peer:
        return peer.connect(who, server.token(who), supported_profiles=["compatibility"], **more)


@pytest.mark.req("EXT-01")
@pytest.mark.parametrize(
    ("asked", "granted"),
    [
        ([], []),
        (["nobody knows this", ""], []),
        ([*reversed(EXTENSIONS), *EXTENSIONS, "later"], list(EXTENSIONS)),
    ],
)
def test_known_extensions_are_granted_and_unknown_ones_passed_over(
    server: Server, who: str, asked: list[str], granted: list[str]
) -> None:
    assert connected(server, who, extensions=asked)["capabilities"]["extensions"] == granted


@pytest.mark.req("EXT-01", "ENV-02")
@pytest.mark.parametrize("asked", ["presence", 1, {}, [1], [None]])
def test_extensions_are_an_array_of_names(server: Server, who: str, asked: Any) -> None:
    with server.peer() as peer:
        peer.send_connect(who, server.token(who), extensions=asked)
        peer.expect_error("bad_request")
        peer.connect(who, server.token(who))  # the connection is still there


@pytest.mark.req("EXT-02")
@pytest.mark.parametrize("more", [{}, {"extensions": None}])
def test_whoever_asks_for_none_is_told_of_none(server: Server, who: str, more: dict[str, Any]) -> None:
    told = connected(server, who, **more)
    assert "extension" not in json.dumps(told)
    assert set(told["capabilities"]) == {
        "profile", "accepted_event_types", "ordered_delivery", "tree_policy",
    }  # fmt: skip
