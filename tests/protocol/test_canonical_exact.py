"""Properties of canonical text, and the fast reader compared with the exact one."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.strict_json import CHARACTERS, read_strictly
from unisono.protocol.canonical import (
    PLACE_BYTES_MAX,
    NotCanonical,
    canonical,
    canonical_text,
    parse_canonical,
)
from unisono.protocol.canonical_exact import parse_exact as parse_exactly
from unisono.vocabulary import Json

scalars = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**53) + 1, max_value=2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.text(alphabet=st.sampled_from([character for character in CHARACTERS if len(character) == 1]))
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


def reordered(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: reordered(member) for key, member in reversed(value.items())}
    return [reordered(item) for item in value] if isinstance(value, list) else value


@pytest.mark.req("ORD-06", "ORD-07")
@settings(max_examples=200)
@given(values)
def test_canonical_text_is_a_fixed_point(value: Json) -> None:
    text = canonical(value)
    assert text == rfc8785.dumps(value)
    assert parse_canonical(text) == (value, text)
    assert canonical(parse_canonical(text)[0]) == text
    assert json.loads(text, parse_int=float) == value


@pytest.mark.req("ORD-06", "ORD-07")
@settings(max_examples=200)
@given(values, st.sampled_from([None, 0, 3, "\t"]), st.booleans())
def test_key_order_spaces_and_escapes_do_not_matter(
    value: Json, indent: int | str | None, ascii_only: bool
) -> None:
    text = canonical(value)
    assert canonical(reordered(value)) == text
    raw = json.dumps(reordered(value), indent=indent, ensure_ascii=ascii_only).encode()
    assert parse_canonical(raw) == (value, text)


@pytest.mark.req("ORD-07")
@settings(max_examples=200)
@given(st.binary(max_size=60) | st.text(max_size=30).map(str.encode))
def test_any_bytes_are_parsed_or_refused(raw: bytes) -> None:
    expected = read_strictly(raw)
    if expected is None:
        with pytest.raises(NotCanonical):
            parse_canonical(raw)
    else:
        assert parse_canonical(raw)[1] == expected


spellings = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.builds("{}e{}".format, st.integers(-99, 99), st.integers(-330, 308)),
    st.builds("{}.0".format, st.integers(-(10**24), 10**24)),
    st.builds("{}.{}E{:+d}".format, st.integers(0, 99), st.integers(0, 10**18), st.integers(-30, 30)),
    st.integers(-(10**20), 10**20).map(str),
    st.sampled_from(
        ["-0", "0.0", "-0.0", "0e5", "1e-400", "5e-324", "1e400", "1e16", "1e21", "1e-6", "1e-7"]
    ),
)


def outcome(read: Callable[[], bytes]) -> bytes | tuple[str, str]:
    try:
        return read()
    except NotCanonical as refused:
        return refused.field, refused.reason


@pytest.mark.req("ORD-06", "ORD-07", "LIM-07")
@settings(max_examples=250)
@given(st.lists(spellings, max_size=4), st.sampled_from(["a", "1.0", 'b"1e5', "\\e5", "é", "{:,[]}"]))
def test_the_text_of_a_message_is_what_reading_it_exactly_gives(numbers: list[str], name: str) -> None:
    raw = f'{{"n": [{", ".join(numbers)}], {json.dumps(name)}: "1.0"}}'.encode()
    require_same_outcome(raw)


strings = st.lists(
    st.sampled_from(
        [r"\u003a", r"\u003A", ":", r"\\", r"\"", "a", r"\u0061", "\ue000", "\U00010000", r"\ud800"]
    ),
    max_size=3,
).map(lambda parts: f'"{"".join(parts)}"')
texts = st.recursive(
    strings | spellings,
    lambda below: (
        st.lists(below, max_size=3).map(lambda each: f"[{','.join(each)}]")
        | st.lists(st.builds("{}:{}".format, strings, below), max_size=4).map(
            lambda each: f"{{{','.join(each)}}}"
        )
    ),
    max_leaves=12,
)


@pytest.mark.req("ORD-06", "ORD-07", "LIM-07")
@settings(max_examples=300)
@given(texts)
def test_escapes_repeated_keys_and_orders_are_what_reading_them_exactly_gives(text: str) -> None:
    require_same_outcome(text.encode())


def require_same_outcome(raw: bytes) -> None:
    """Of a long text only the reason is told; and where there are several, any of them."""
    exactly = outcome(lambda: parse_exactly(raw)[1])
    assert outcome(lambda: canonical_text(raw, 1 << 20)) == exactly
    assert outcome(lambda: parse_canonical(raw)[1]) == exactly
    in_long = outcome(lambda: canonical_text(raw + b" " * PLACE_BYTES_MAX, 1 << 20))
    if isinstance(exactly, bytes):
        assert in_long == exactly
    else:
        assert in_long[0] == ""
        assert in_long[1]


@pytest.mark.req("LIM-07")
@pytest.mark.parametrize("number", ["1e20", "1.5", "7"])
def test_the_canonical_text_is_bounded(number: str) -> None:
    raw = f"[{','.join([number] * 10)}]".encode()
    size = len(parse_canonical(raw)[1])
    assert len(canonical_text(raw, size)) == size
    with pytest.raises(
        NotCanonical, match=f"has {size} bytes in canonical form, at most {size - 1} are allowed"
    ):
        canonical_text(raw, size - 1)
