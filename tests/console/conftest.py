"""A server with some history, and its operator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.behaviour.server.harness import Server, item, tree_event
from tests.console.operator import Operator
from unisono.samples import sample_model

HOSTILE = "<img src=x onerror=\"document.title='owned'\">\u202e\u0007"


def garden(server: Server) -> list[int]:
    """An outline with nested items, a hostile title, a moved and a renamed item, and two refused events."""
    with server.client("ann") as ann:
        ids = [
            ann.commit(
                ["garden", "orchard"] if number == 2 else ["garden"],
                tree_event(f"n{number}", "outline", title=f"Bed {number}"),
            )
            for number in range(4)
        ]
        ids.append(ann.commit(["garden"], tree_event("n4", "outline", title=HOSTILE)))
        move = {
            "type": "treeMove",
            "payload": {"target": "outline", "options": {"id": "n3", "parent": "n1"}},
        }
        rename = {
            "type": "treeUpdate",
            "payload": {"target": "outline", "value": {"title": "Herbs"}, "options": {"id": "n2"}},
        }
        ids.append(ann.commit(["garden"], move))
        ids.append(ann.commit(["garden", "orchard"], rename))
        astray = {"target": "outline", "options": {"id": "n2", "parent": "nowhere"}}
        (refused,) = ann.submit(item(["garden"], {"type": "treeMove", "payload": astray}))
        assert refused["status"] == "rejected"
        for _ in range(2):
            (refused,) = ann.submit(item(["garden"], tree_event("n9", "outline")))
            assert refused["status"] == "rejected"
    return ids


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("console") / "data"
    started = Server(data, "--model", str(sample_model()), "--access-default", "allow").start()
    yield started
    started.kill()


@pytest.fixture(scope="module")
def ids(server: Server) -> list[int]:
    return garden(server)


@pytest.fixture(scope="module")
def operator(server: Server) -> Operator:
    return Operator(server)
