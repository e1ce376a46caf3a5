"""A log read through another model: what no longer applies, what would be refused, each event once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.authority.models import write_model
from unisono.model import replay as replaying
from unisono.model.load import load_model
from unisono.model.model import Model
from unisono.model.replay import ReplayKind, Review, Reviewer
from unisono.vocabulary import Json, JsonObject

RULES = """
from unisono.model.rules import Rules, refuse

rules = Rules()
VERSION = {version}


@rules.check("counted")
def not_too_many(state, event):
    if VERSION > 1 and state.get("count", 0) >= 2:
        yield refuse("", "two are enough")


@rules.reduce("counted")
def counted(state, event):
    if VERSION > 1:
        event.data["weight"] + 1
    state["count"] = state.get("count", 0) + 1


@rules.reduce("reduce.raises")
def fails(state, event):
    raise KeyError("always")
"""


@pytest.fixture
def models(tmp_path: Path) -> tuple[Model, Model]:
    old, new = (load_model(write_model(tmp_path / str(n), n, RULES)) for n in (1, 2))
    return old, new


def counted(**data: Json) -> JsonObject:
    return {"type": "event", "payload": {"schema": "counted", "data": data}}


def named(schema: str) -> JsonObject:
    return {"type": "event", "payload": {"schema": schema, "data": {}}}


def push(id: str) -> JsonObject:
    return {"type": "treePush", "payload": {"target": "t", "value": {"id": id}}}


Log = Sequence[tuple[JsonObject, tuple[str, ...]]]


def review(now: Model, before: Model | None, log: Log) -> Review:
    reviewer = Reviewer(now, before, len(log))
    for partition in sorted({name for _, names in log for name in names}, reverse=True):
        for committed_id, (event, names) in enumerate(log, start=1):
            if partition in names:
                reviewer.go_on(partition)
                reviewer.take(committed_id, event, names)
    return reviewer.review


def figures(kind: ReplayKind) -> tuple[int, int, int, int]:
    return kind.events, kind.no_longer, kind.never, kind.refused


@pytest.mark.req("MODEL-02")
def test_what_no_longer_applies_and_what_would_be_refused(models: tuple[Model, Model]) -> None:
    old, new = models
    log: Log = [
        (counted(weight=1), ("p",)),
        (counted(), ("p",)),
        (counted(weight=1), ("p",)),
        (counted(weight=1), ("p",)),
        (named("reduce.raises"), ("p",)),
        (named("gone"), ("p",)),
        (push("A"), ("p",)),
        (push("A"), ("p",)),
        (counted(), ("q",)),
    ]
    found = review(new, old, log)
    assert {name: figures(kind) for name, kind in found.kinds.items()} == {
        "counted": (5, 2, 0, 1),
        "reduce.raises": (1, 0, 1, 0),
        "gone": (1, 0, 1, 0),
        "treePush": (2, 0, 1, 0),
    }
    assert (found.events, found.partitions, found.no_longer, found.never, found.refused) == (9, 2, 2, 3, 1)
    first, second = found.kinds["counted"].lost
    assert (first.committed_id, first.partition, second.committed_id) == (2, "p", 9)
    assert first.reason == "the reducer 'counted' of 'counted' failed: KeyError: 'weight'"
    assert [(e.committed_id, e.reason) for e in found.kinds["counted"].refusals] == [
        (4, "event.payload.data: two are enough")
    ]
    text = "\n".join(found.lines())
    assert "2 no longer apply" in text
    assert "counted: 2 of 5\n      event 2 in 'p': the reducer" in text
    assert "3 more did not apply before either" in text

    alone = review(new, None, log)
    assert (alone.no_longer, alone.never) == (5, 0)
    assert [e.reason for e in alone.kinds["gone"].lost] == ["its schema is not in the model"]
    assert "already in the tree" in alone.kinds["treePush"].lost[0].reason


def test_an_event_of_several_partitions_counts_once(
    models: tuple[Model, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = models
    log: Log = [
        (push("A"), ("b",)),
        (push("A"), ("a", "b", "c")),  # not in b, under either model
        (counted(), ("a", "b")),  # nowhere any more
        (counted(weight=1), ("a",)),
        (counted(weight=1), ("a",)),
        (counted(weight=1), ("a", "b")),  # refused in a
    ]
    found = review(new, old, log)
    assert figures(found.kinds["treePush"]) == (2, 0, 1, 0)
    assert figures(found.kinds["counted"]) == (4, 1, 0, 1)
    assert [e.committed_id for e in found.kinds["counted"].lost] == [3]
    assert found.exact
    monkeypatch.setattr(replaying, "SEVERAL_MAX", 0)
    assert not review(new, old, log).exact


def test_kinds_and_examples_are_bounded(models: tuple[Model, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "KINDS_MAX", 10)
    found = review(models[1], None, [(named(f"gone{number}"), ("p",)) for number in range(50)])
    assert len(found.kinds) == 11
    assert found.no_longer == 50
    assert len(found.kinds[replaying.OTHER_KINDS].lost) == replaying.EXAMPLES_MAX
    assert all(kind.lost for kind in found.kinds.values())
