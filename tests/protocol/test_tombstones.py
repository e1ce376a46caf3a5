from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.model.model import CANONICAL, COMPATIBILITY, open_model
from unisono.model.partition import PartitionState
from unisono.protocol.canonical import SAFE_INTEGER_MAX, canonical, parse_canonical
from unisono.protocol.tombstones import is_tombstone, tombstone


@given(st.integers(0, SAFE_INTEGER_MAX))
def test_a_tombstone_is_canonical_and_known_as_one(at: int) -> None:
    text = tombstone(at)
    assert text == canonical({"type": "erased", "payload": {"erased_at": at}})
    assert is_tombstone(text)


@pytest.mark.req("PROF-07")
def test_no_profile_accepts_one_and_replay_passes_over_it() -> None:
    event, _ = parse_canonical(tombstone(1_700_000_000_000))
    assert isinstance(event, dict)
    model = open_model()
    assert [error.field for error in model.shape(CANONICAL, event)] == ["event.type"]
    assert [error.field for error in model.shape(COMPATIBILITY, event)] == ["event.type"]
    state = PartitionState()
    assert not model.apply_committed(state, event)
    assert state.dump() == {"tree": {}, "data": {}}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b'{"payload":{"erased_at":1},"type":"erased"} ',
        b'{"payload":{"erased_at":1},"type":"erased"}\n',
        b'{"type":"erased","payload":{"erased_at":1}}',
        b'{"payload":{"erased_at":01},"type":"erased"}',
        b'{"payload":{"erased_at":-1},"type":"erased"}',
        b'{"payload":{"erased_at":1.5},"type":"erased"}',
        b'{"payload":{"erased_at":"1"},"type":"erased"}',
        b'{"payload":{"erased_at":9007199254740992},"type":"erased"}',
        b'{"payload":{"by":"bob","erased_at":1},"type":"erased"}',
        b'{"payload":{"erased_at":1},"type":"event"}',
    ],
)
def test_what_only_resembles_one_is_none(text: bytes) -> None:
    assert not is_tombstone(text)


@pytest.mark.parametrize("at", [-1, SAFE_INTEGER_MAX + 1])
def test_a_time_that_json_cannot_carry_is_refused(at: int) -> None:
    with pytest.raises(ValueError, match="not a time"):
        tombstone(at)
