"""What has no canonical text: repeated keys, lone surrogates, bytes that are no UTF-8 or JSON, nesting too deep."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from unisono.protocol.canonical import NotCanonical, canonical, parse_canonical
from unisono.protocol.canonical_exact import NESTING_MAX
from unisono.vocabulary import Json


@pytest.mark.req("ORD-07")
@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b'{"a":1,"a":1}', "a"),
        (b'{"a":1,"a":2}', "a"),
        (b'{"a":1,"b":2,"a":3}', "a"),
        (b'{"a":1,"\\u0061":2}', "a"),
        (b'{"a/b":1,"a\\/b":2}', "a/b"),
        (b'{"\\n":1,"\\u000a":2}', "\n"),
        (b'{"\xc3\xa9":1,"\\u00e9":2}', "é"),
        (b'{"\xf0\x9f\x98\x82":1,"\\ud83d\\ude02":2}', "\U0001f602"),
        (b'[0,{"x":{"a":[],"a":[]}}]', "1.x.a"),
        (b'{"a":{"b":1},"a":{"c":1}}', "a"),
        (b'{"":1,"":2}', ""),
        (b'{"a":"::","a":"\\u003a\\u003a","b":0}', "a"),
        (b'{"a":1,"a":"\\u003a"}', "a"),
        (b'{"a":1,"a":"\\u003A"}', "a"),
        (b'{"a":"","a":"\\u003a","n":1.5}', "a"),
        (b'{"a":1,"a":1,"n":1E-3}', "a"),
        (b'{"a":1e-5,"a":1e-5,"n":1e19}', "a"),
        (b'{"k":"a:b","k":":","z":"\\"a\\":1"}', "k"),
        (b'{"\\ud800":1,"\\ud800":2}', "?"),
    ],
)
def test_duplicate_keys_are_refused(raw: bytes, field: str) -> None:
    with pytest.raises(NotCanonical, match="appears twice") as caught:
        parse_canonical(raw)
    assert caught.value.field == field


@pytest.mark.req("ORD-07")
def test_equal_keys_in_different_objects_are_fine() -> None:
    raw = b'[{"a":1},{"a":1},{"a":{"a":"\\u003a"}},{"\\"a\\":1":":","a":":"}]'
    expected = b'[{"a":1},{"a":1},{"a":{"a":":"}},{"\\"a\\":1":":","a":":"}]'
    assert parse_canonical(raw)[1] == expected


@pytest.mark.req("ORD-07")
@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b'"\\ud800"', ""),
        (b'"\\udc00"', ""),
        (b'"x\\ud83dy"', ""),
        (b'"\\ude02\\ud83d"', ""),
        (b'"\\ud83d\\u0041"', ""),
        (b'"\\uD83D\\uD83D\\uDE02"', ""),
        (b'{"a":["ok","\\udfff"]}', "a.1"),
        (b'{"a":{"\\ud800":1}}', "a"),
    ],
)
def test_lone_surrogates_are_refused(raw: bytes, field: str) -> None:
    with pytest.raises(NotCanonical, match="lone surrogate") as caught:
        parse_canonical(raw)
    assert caught.value.field == field
    with pytest.raises(NotCanonical, match="lone surrogate") as caught:
        canonical(json.loads(raw))
    assert caught.value.field == field


@pytest.mark.req("ORD-07")
@pytest.mark.parametrize(
    "raw",
    [
        b'"\xff"',
        "1".encode("utf-16"),
        b'"\xc0\x80"',
        b'"\xed\xa0\x80"',
        b'"\xf4\x90\x80\x80"',
        b'{"a\xe9":1}',
        b'"\xc3',
        b"\xc3",
        b"1\x80",
    ],
)
def test_invalid_utf8_is_refused(raw: bytes) -> None:
    with pytest.raises(NotCanonical, match="not valid UTF-8"):
        parse_canonical(raw)


@pytest.mark.req("ORD-07")
@pytest.mark.parametrize(
    "raw",
    [
        *(
            b"",
            b" ",
            b"\x00",
            b"\xef\xbb\xbf1",
            b"nul",
            b"True",
            b"1 2",
            b"{} {}",
            b"'a'",
            b"\x0c1",
        ),
        *(b"01", b"-01", b"+1", b".5", b"1.", b"-", b"1e", b"1e+", b"0x1", b"--1", b"1_0", b"\xd9\xa1"),
        *(
            b"[1,]",
            b"[",
            b"]",
            b"[1 2]",
            b"{",
            b'{"a"}',
            b'{"a":}',
            b'{"a":1,}',
            b"{1:2}",
            b'{"a":1 "b":2}',
            b"{,}",
        ),
        *(
            b'"',
            b'"a\nb"',
            b'"\x00"',
            b'"\x1f"',
            b'"\\x41"',
            b'"\\u12"',
            b'"\\u00g0"',
            b'"\\"',
            b'"\\u+041"',
            b"/**/1",
        ),
    ],
)
def test_invalid_json_is_refused(raw: bytes) -> None:
    with pytest.raises(NotCanonical, match="not valid JSON"):
        parse_canonical(raw)


@pytest.mark.req("ORD-07")
@pytest.mark.parametrize("raw", [b"NaN", b"[Infinity]", b'{"a":-Infinity}'])
def test_number_names_are_refused(raw: bytes) -> None:
    with pytest.raises(NotCanonical, match="is not a JSON number"):
        parse_canonical(raw)


@pytest.mark.req("ORD-07")
def test_values_that_are_not_json_are_refused() -> None:
    for value in (object(), {"a": b"x"}, [{1, 2}], {1: "a"}, {None: 1}, {"a": {2.5: 0}}, Decimal(1)):
        with pytest.raises(NotCanonical):
            canonical(value)  # type: ignore[arg-type]


@pytest.mark.req("ORD-07")
def test_a_refusal_names_its_place_and_reads_as_a_sentence() -> None:
    with pytest.raises(NotCanonical) as caught:
        parse_canonical(b'{"payload":{"items":[{"n":1},{"n":9007199254740993}]}}')
    assert caught.value.field == "payload.items.1.n"
    assert caught.value.reason == str(caught.value)
    assert caught.value.reason == (
        "the number 9007199254740993 does not survive as an IEEE double: it would become 9007199254740992"
    )


@pytest.mark.req("ORD-07", "LIM-06")
def test_depth_is_bounded_without_a_recursion_error() -> None:
    def nested(levels: int, leaf: Json) -> Json:
        for level in range(levels):
            leaf = [leaf] if level % 2 else {"a": leaf}
        return leaf

    for leaf in (1, 1.0, "\U0001f602"):
        deepest = nested(NESTING_MAX, leaf)
        assert parse_canonical(canonical(deepest)) == (deepest, canonical(deepest))
        for levels in (NESTING_MAX + 1, 1_000, 20_000):
            with pytest.raises(NotCanonical, match="nested too deeply"):
                canonical(nested(levels, leaf))
    for raw in (
        b"[" * 255 + b"]" * 255,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 50_000 + b"1.0" + b"}" * 50_000,
    ):
        with pytest.raises(NotCanonical, match="nested too deeply"):
            parse_canonical(raw)
    with pytest.raises(NotCanonical):
        parse_canonical(b"[" * 100_000)
