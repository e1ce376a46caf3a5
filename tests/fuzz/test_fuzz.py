"""A thousand damaged inputs for each target, and some that Hypothesis finds; soak/test_fuzz.py runs a million."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, run


@pytest.mark.req("ENV-01", "ORD-06", "ORD-07", "PART-01", "TREE-01", "ERR-03")
@pytest.mark.parametrize("target", TARGETS)
def test_damaged_input_does_nothing_undefined(target: str) -> None:
    run(target, 0, 1_000)


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=150)
@given(
    st.one_of(
        st.binary(max_size=300), st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))
    )
)
def test_any_bytes_do_nothing_undefined(target: str, data: bytes) -> None:
    TARGETS[target](data)
