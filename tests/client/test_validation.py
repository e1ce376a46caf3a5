"""Local validation of an event's form."""

from __future__ import annotations

from typing import Any

import pytest

from unisono.client.errors import InvalidEvent
from unisono.client.validation import check_form, named
from unisono.vocabulary import Json

GOOD: Json = {"type": "set", "payload": {"target": "a", "value": 1}}


def fields(
    id: str = "x", partitions: Any = ("p",), event: Json = GOOD, bytes_max: int | None = None
) -> list[str]:
    with pytest.raises(InvalidEvent) as refused:
        check_form(id, partitions, event, bytes_max)
    return [error.field for error in refused.value.errors]


def deep(levels: int) -> Json:
    value: Json = 1
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.req("CLIENT-02")
def test_what_is_wrong_with_the_form_is_named() -> None:
    assert fields(id="") == ["id"]
    assert fields(id="é" * 65) == ["id"]
    assert fields(partitions=()) == ["partitions"]
    assert fields(partitions=["p", ""]) == ["partitions.1"]
    assert fields(partitions=["x" * 129]) == ["partitions.0"]
    assert fields(event=[1]) == ["event"]
    assert fields(event={"type": "set", "payload": {"value": float("nan")}}) == ["event.payload.value"]
    assert fields(event={"type": "set", "payload": {"value": 2**53 + 1}}) == ["event.payload.value"]
    assert fields(event={"type": "\ud800"}) == ["event.type"]
    assert fields(event=deep(80)) == ["event"]
    assert fields(event={"type": "x" * 900}, bytes_max=1024) == ["event"]


@pytest.mark.req("CLIENT-02")
def test_what_is_right_is_normalised() -> None:
    checked = check_form("x", ["q", "e\u0301", "p", "q"], {"b": 1.0, "a": {}}, None)
    assert checked.partitions == ("p", "q", "\u00e9")
    assert checked.text == b'{"a":{},"b":1}'
    assert checked.event == {"a": {}, "b": 1}
    assert isinstance(checked.event["b"], int)


@pytest.mark.req("PART-05")
def test_one_partition_may_be_given_by_the_older_name() -> None:
    assert named(None, "p") == ["p"]
    assert named(["p"], "p") == ["p"]
    assert named(("p", "q"), None) == ["p", "q"]
    with pytest.raises(TypeError, match="disagree"):
        named(["q"], "p")
    with pytest.raises(TypeError, match="name the partitions"):
        named(None, None)
    with pytest.raises(TypeError, match="is a list"):
        named("p", None)
