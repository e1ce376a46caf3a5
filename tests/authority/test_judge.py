"""What becomes of one item: the order of questions, and the same through a running authority."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.authority.seat import Seat, candidate, new_id, push, put, reading, seated
from unisono.authority.channel import Candidate, Outcome, Refused, SingleOutcome
from unisono.authority.judge import Commit, Duplicate, Reject, Verdict, judge
from unisono.authority.states import States
from unisono.model.model import COMPATIBILITY, no_model
from unisono.store.port import Known
from unisono.store.sqlite import SqliteLog
from unisono.vocabulary import FieldError

FORBIDDEN = (FieldError("partitions.0", "not yours"),)


@pytest.fixture
def states(tmp_path: Path) -> Iterator[States]:
    store = SqliteLog.open(tmp_path / "data")
    yield States(no_model(), store, bytes_max=1 << 20, snapshot_every=0, now_ms=lambda: 0)
    store.close()


@pytest.fixture
def seat(tmp_path: Path) -> Iterator[Seat]:
    with seated(tmp_path / "data", fronts=2) as seat:
        yield seat


def verdict(states: States, item: Candidate | Refused, known: dict[str, Known] | None = None) -> Verdict:
    assert states.ready(COMPATIBILITY, item.partitions)
    return judge(item, COMPATIBILITY, known or {}, states)


def known_as(item: Candidate) -> dict[str, Known]:
    return {item.id: Known(7, item.hash, "somebody", 1234)}


@pytest.mark.req("AUTHZ-06")
@pytest.mark.parametrize("reason", ["forbidden", "validation_failed"])
def test_a_refusal_of_the_front_comes_first_and_tells_nothing_of_what_exists(
    states: States, reason: str
) -> None:
    committed = candidate(["p"], push("a"))
    refused = msgspec.convert(
        {"id": committed.id, "partitions": ("p",), "reason": reason, "errors": FORBIDDEN},
        Refused,
        from_attributes=True,
    ) if False else Refused(committed.id, ("p",), "forbidden", FORBIDDEN)
    assert verdict(states, refused, known_as(committed)) == Reject("forbidden", FORBIDDEN)
    assert verdict(states, refused) == Reject("forbidden", FORBIDDEN)
