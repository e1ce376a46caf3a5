from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.model.pack import _put_together, _taken_apart, pack, unpack
from unisono.vocabulary import Json, JsonObject

scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
)


@given(st.dictionaries(st.text(max_size=4), values, max_size=4))
def test_packed_objects_come_back_with_their_key_order(value: JsonObject) -> None:
    again = unpack(pack(value))
    assert again == value
    assert list(again) == list(value)


@given(values)
def test_taking_apart_and_putting_together_are_inverse(value: Json) -> None:
    again = _put_together(_taken_apart(value))
    assert again == value
    assert str(again) == str(value)


@pytest.mark.req("TREE-12")
def test_a_hundred_thousand_levels_are_packed_and_unpacked() -> None:
    deep: JsonObject = {}
    for level in range(100_000):
        deep = {"id": str(level), "children": [deep]}
    packed = pack(deep)
    again = unpack(packed)
    assert pack(again) == packed
    depth = 0
    node: Json = again
    while isinstance(node, dict) and node:
        children = node["children"]
        assert isinstance(children, list)
        node = children[0]
        depth += 1
    assert depth == 100_000


@pytest.mark.parametrize("broken", [b"[]", b"[[1,1]]", b'["a",[1,1]]', b"[1,2]", b"[[7,0]]", b"[1]", b"3"])
def test_what_is_not_packed_is_refused(broken: bytes) -> None:
    with pytest.raises(ValueError, match="packed data"):
        unpack(broken)
