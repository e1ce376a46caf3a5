"""Canonical JSON, against the RFC's own examples, its number table, two other implementations and chance.

The oracles are independent of the code under test: the `rfc8785` library writes, and `read_strictly`
below reads with the standard library and judges numbers with `Decimal`.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from decimal import Decimal

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from unisono.protocol.canonical import (
    PLACE_BYTES_MAX,
    NotCanonical,
    canonical,
    canonical_text,
    content_hash,
    parse_canonical,
)
from unisono.protocol.canonical_exact import NESTING_MAX
from unisono.protocol.canonical_exact import parse_exact as parse_exactly
from unisono.vocabulary import Json, JsonObject

EXAMPLES = {
    "arrays": (
        '[\n  56,\n  {\n    "d": true,\n    "10": null,\n    "1": [ ]\n  }\n]',
        '[56,{"1":[],"10":null,"d":true}]',
    ),
    "french": (
        '{ "sin": "ignore locale", "p\u00eache": "but canonicalization MUST",'
        ' "p\u00e9ch\u00e9": "is wrong according to French", "peach": "This sorting order" }',
        '{"peach":"This sorting order","p\u00e9ch\u00e9":"is wrong according to French",'
        '"p\u00eache":"but canonicalization MUST","sin":"ignore locale"}',
    ),
    "structures": (
        '{"1": {"f": {"f": "hi","F": 5} ,"\\n": 56.0}, "10": { }, "": "empty", "a": { },'
        ' "111": [ {"e": "yes", "E": "no"} ], "A": { }}',
        '{"":"empty","1":{"\\n":56,"f":{"F":5,"f":"hi"}},"10":{},"111":[{"E":"no","e":"yes"}],"A":{},"a":{}}',
    ),
    "unicode": ('{"Unnormalized Unicode":"A\\u030a"}', '{"Unnormalized Unicode":"A\u030a"}'),
    "values": (
        '{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],'
        ' "string": "\\u20ac$\\u000F\\u000aA\'\\u0042\\u0022\\u005c\\\\\\"\\/",'
        ' "literals": [null, true, false]}',
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}',
    ),
    "weird": (
        '{"\\u20ac": "Euro Sign", "\\r": "Carriage Return", "\\u000a": "Newline", "1": "One",'
        ' "\\u0080": "Control\\u007f", "\\ud83d\\ude02": "Smiley",'
        ' "\\u00f6": "Latin Small Letter O With Diaeresis",'
        ' "\\ufb33": "Hebrew Letter Dalet With Dagesh", "</script>": "Browser Challenge"}',
        '{"\\n":"Newline","\\r":"Carriage Return","1":"One","</script>":"Browser Challenge",'
        '"\u0080":"Control\u007f","\u00f6":"Latin Small Letter O With Diaeresis","\u20ac":"Euro Sign",'
        '"\U0001f602":"Smiley","\ufb33":"Hebrew Letter Dalet With Dagesh"}',
    ),
}
"""The documents that accompany RFC 8785: as sent, and canonical."""

VALUES_HEX = """
7b 22 6c 69 74 65 72 61 6c 73 22 3a 5b 6e 75 6c 6c 2c 74 72 75 65 2c 66 61 6c 73 65 5d 2c 22 6e 75 6d 62 65
72 73 22 3a 5b 33 33 33 33 33 33 33 33 33 2e 33 33 33 33 33 33 33 2c 31 65 2b 33 30 2c 34 2e 35 2c 30 2e 30
30 32 2c 31 65 2d 32 37 5d 2c 22 73 74 72 69 6e 67 22 3a 22 e2 82 ac 24 5c 75 30 30 30 66 5c 6e 41 27 42 5c
22 5c 5c 5c 5c 5c 22 2f 22 7d
"""
"""Section 3.2.4: the bytes of the "values" document."""

APPENDIX_B = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}
"""Appendix B of RFC 8785: IEEE 754 bits and their text."""


def double(bits: str) -> float:
    number: float = struct.unpack(">d", bytes.fromhex(bits))[0]
    return number


# The RFC's own words.


@pytest.mark.req("ORD-06")
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_the_rfc(name: str) -> None:
    sent, expected = EXAMPLES[name]
    value, text = parse_canonical(sent.encode())
    assert text == expected.encode()
    assert value == json.loads(sent)
    assert canonical(json.loads(sent)) == text


@pytest.mark.req("ORD-06")
def test_bytes_printed_in_the_rfc() -> None:
    assert parse_canonical(EXAMPLES["values"][0].encode())[1] == bytes.fromhex(VALUES_HEX)


@pytest.mark.req("ORD-06", "ORD-07")
@pytest.mark.parametrize("bits", APPENDIX_B)
def test_number_table_of_the_rfc(bits: str) -> None:
    number, expected = double(bits), APPENDIX_B[bits].encode()
    assert canonical(number) == expected
    assert canonical({"n": [number, "1.0"]}) == b'{"n":[%b,"1.0"]}' % expected
    assert parse_canonical(expected) == (number, expected)
    assert parse_canonical(repr(number).encode()) == (number, expected)


@pytest.mark.req("ORD-07")
@pytest.mark.parametrize(
    "bits",
    ["7fffffffffffffff", "7ff0000000000000", "fff0000000000000", "fff8000000000000", "7ff0000000000001"],
)
def test_nan_and_infinity_are_refused(bits: str) -> None:
    number = double(bits)
    values: list[Json] = [number, [None, number], {"a": {"b": [1.5, number]}, "null": None}]
    for value in values:
        with pytest.raises(NotCanonical, match="NaN and infinity"):
            canonical(value)


@pytest.mark.req("ORD-06")
def test_every_character_is_written_as_the_rfc_says() -> None:
    short = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 0x22: '\\"', 0x5C: "\\\\"}
    for code in [*range(0xD800), *range(0xE000, 0x10000), *range(0x10000, 0x110000, 251), 0x10FFFF]:
        written = short.get(code) or (f"\\u{code:04x}" if code < 0x20 else chr(code))
        expected = f'{{"{written}":"{written}"}}'.encode()
        assert canonical({chr(code): chr(code)}) == expected
        assert canonical([{chr(code): chr(code)}, 1.0]) == b"[%b,1]" % expected


@pytest.mark.req("ORD-06")
def test_keys_are_ordered_by_utf16() -> None:
    # U+1F602 is the pair D83D DE02: before U+FB33 in UTF-16, after it in UTF-8.
    in_order = ["a", "é", "\ud7ff", "😂", "\U0010ffff", "\ue000", "דּ", "\uffff"]
    for leaf in (1, 1.0, 0.5, "\n", None):
        value: JsonObject = dict.fromkeys(reversed(in_order), leaf)
        assert list(json.loads(canonical(value))) == in_order
        assert parse_canonical(json.dumps(value).encode()) == (value, canonical(value))
    assert canonical({'\ufb33"': 1, '\U0001f602"': 2}) == '{"\U0001f602\\"":2,"\ufb33\\"":1}'.encode()
    assert canonical({"a": "\ufe0f", "b": "\U0001f602"}) == '{"a":"\ufe0f","b":"\U0001f602"}'.encode()


@pytest.mark.req("ORD-06")
def test_keys_are_ordered_in_containers_of_every_kind() -> None:
    class Members(dict[str, Json]):
        """As states hold objects: a kind of dict."""

    members: JsonObject = {"\ue000": 1, "\U00010000": 2}
    expected = canonical({"x": [members]})
    assert expected == rfc8785.dumps({"x": [members]})
    for value in ({"x": (members,)}, {"x": [Members(members)]}):
        assert canonical(value) == expected  # type: ignore[arg-type]
    assert canonical(Members(members)) == rfc8785.dumps(members)


# Numbers as literals.

SURVIVING = {
    "1": "1",
    "1.0": "1",
    "1e0": "1",
    "1E+0": "1",
    "10e-1": "1",
    "0.00000000000000000001e20": "1",
    "1.00000000000000000000000000000000000000": "1",
    "0": "0",
    "-0": "0",
    "-0.0": "0",
    "0e999999999999999999999": "0",
    "-0E-5": "0",
    "0.000": "0",
    "0.1": "0.1",
    "0.10000000000000001": "0.1",
    "0.1000000000000000055511151231257827021181583404541015625": "0.1",
    "0.10000000000000000000000000": "0.1",
    "0.30000000000000004": "0.30000000000000004",
    "3.141592653589793": "3.141592653589793",
    "3.1415926535897932": "3.141592653589793",
    "-12.50": "-12.5",
    "1e21": "1e+21",
    "1e20": "100000000000000000000",
    "1e23": "1e+23",
    "99999999999999991611392": "1e+23",
    "100000000000000000000000": "1e+23",
    "1e-7": "1e-7",
    "0.0000001": "1e-7",
    "0.000001": "0.000001",
    "1e-6": "0.000001",
    "5e-324": "5e-324",
    "4.9406564584124654e-324": "5e-324",
    "1.7976931348623157e308": "1.7976931348623157e+308",
    "9007199254740991": "9007199254740991",
    "-9007199254740991": "-9007199254740991",
    "9007199254740992": "9007199254740992",
    "9007199254740994": "9007199254740994",
    "9007199254740994.0": "9007199254740994",
    "1152921504606846976": "1152921504606847000",
    "1152921504606847000": "1152921504606847000",
    "1180591620717411303424": "1.1805916207174113e+21",
    "12345678901234567000": "12345678901234567000",
    "1e0000000000000000000000000001": "10",
    "1e" + "0" * 5000 + "2": "100",
    "0." + "0" * 5000 + "1e5001": "1",
    str(2**1023): "8.98846567431158e+307",
    str(Decimal.from_float(5e-324)): "5e-324",
}

REFUSED = [
    "9007199254740993",
    "-9007199254740993",
    "9007199254740993.0",
    "9007199254740993e0",
    "90071992547409.93e2",
    "12345678901234567890",
    "123456789012345678901234567890",
    "1152921504606846977",
    "1152921504606846900",
    "1180591620717411303425",
    "3.14159265358979323846",
    "0.100000000000000000001",
    "0.1000000000000000055511151231257827021181583404541015626",
    "1.00000000000000000001",
    "1e400",
    "1E400",
    "-1e400",
    "1e309",
    "1.7976931348623159e308",
    "1e999999999999999999999999",
    "1e-400",
    "-1e-400",
    "1e-324",
    "2e-324",
    "1e-999999999999999999999999",
    "9" * 5000,
    "1" + "0" * 400,
    "0." + "0" * 400 + "1",
    "1." + "0" * 5000 + "1",
    str(2**1024),
    str(2**1023 + 1),
]


@pytest.mark.req("ORD-07")
@pytest.mark.parametrize("literal", SURVIVING, ids=lambda literal: str(literal)[:30])
def test_numbers_that_survive(literal: str) -> None:
    expected = SURVIVING[literal].encode()
    for before, after in ((b"", b""), (b'{"n":[', b"]}"), (b'{ "e" : "x", "n": ', b"}")):
        value, text = parse_canonical(before + literal.encode() + after)
        assert text.endswith(expected + after)
        assert canonical(value) == text
        assert parse_canonical(text) == (value, text)
    number = parse_canonical(literal.encode())[0]
    assert isinstance(number, int | float)
    assert number == float(literal)
    assert isinstance(number, int) == (number == int(number) and abs(number) < 2**53)


@pytest.mark.req("ORD-07")
@pytest.mark.parametrize("literal", REFUSED, ids=lambda literal: str(literal)[:30])
def test_numbers_that_do_not_survive(literal: str) -> None:
    for before, after, field in (
        (b"", b"", ""),
        (b'{"a":[1.5,{"n":', b"}]}", "a.1.n"),
        (b'[ "\\u003a",', b"]", "1"),
    ):
        with pytest.raises(NotCanonical, match="IEEE double") as caught:
            parse_canonical(before + literal.encode() + after)
        assert caught.value.field == field
        assert literal[:39] in caught.value.reason
        assert len(caught.value.reason) < 160


@pytest.mark.req("ORD-07")
def test_decoded_integers_follow_the_same_rule() -> None:
    assert canonical(2**53 - 1) == b"9007199254740991"
    assert canonical(2**60) == b"1152921504606847000"
    assert canonical(1152921504606847000) == b"1152921504606847000"
    assert canonical([-(2**70)]) == b"[-1.1805916207174113e+21]"
    assert parse_canonical(str(2**70).encode())[0] == 2**70
    for value in (2**53 + 1, -(2**53) - 1, 2**64 - 1, 2**70 + 1, 10**400, -(10**5000)):
        with pytest.raises(NotCanonical, match="IEEE double"):
            canonical({"n": value})


@pytest.mark.req("ORD-06", "ORD-07")
def test_spellings_of_one_value_are_equal() -> None:
    spellings = [
        b'{"a":1,"b":[0.5,100],"c":"\xc3\xa9/"}',
        b'{"c":"\\u00e9\\/","b":[5e-1,1e2],"a":1.0}',
        b' {\t"b" : [ 0.50 , 100.0 ] ,\r\n "a" : 1e0 , "c" : "\\u00E9/" }\n',
    ]
    assert {parse_canonical(raw)[1] for raw in spellings} == {'{"a":1,"b":[0.5,100],"c":"é/"}'.encode()}


# Refusals other than numbers.


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


# The hash.


@pytest.mark.req("ORD-06")
def test_content_hash_is_that_of_the_whole_object() -> None:
    event: Json = {"type": "x", "payload": {"é": [1.0, None, "\U0001f602"]}}
    partitions: Json = ["b", "a", "ü"]
    whole = rfc8785.dumps({"partitions": ["b", "a", "ü"], "event": event})
    assert content_hash(canonical(event), canonical(partitions)) == hashlib.sha256(whole).digest()
    assert content_hash(b"1", b"[]") == hashlib.sha256(b'{"event":1,"partitions":[]}').digest()
    assert content_hash(b"1", b"[]") != content_hash(b"1", b"[0]")


# Chance, against other implementations.

CHARACTERS = [
    *(chr(code) for code in range(0x20)),
    *'"\\/:,.eE019-+[]{} azAZ\x7f',
    *"\u0080\u00e9\u00ff\u02c8\u02cb\u0301\u03a9\u2028\u20ac\u4e2d\ud7ff\ue000\ufb33\ufe0f\ufffe\uffff",
    *"\U00010000\U0001f602\U0010ffff",
    *("true", "null", "1.0", "1e5", ":1.5,", "\\u003a", '":', "abc", "id", "name"),
]
EDGES = [
    *(0, -1, 1, 203, 0xCB00, 2**53 - 1, -(2**53) + 1, 1_753_200_000_123),
    *(0.0, -0.0, 1.0, -1.0, 0.1, 12.5, 1e15, 1e16, 1e17, 1e20, 1e21, 1e22, 1e-4, 1e-5, 1e-6, 1e-7, 1.5e-7),
    *(
        5e-324,
        2.2250738585072014e-308,
        1.7976931348623157e308,
        2.0**53,
        2.0**60,
        2.0**70,
        123456789012345680.0,
    ),
]


def hostile_text(chance: random.Random) -> str:
    return "".join(chance.choices(CHARACTERS, k=int(chance.random() * 5)))


def any_double(chance: random.Random) -> float:
    while True:
        number: float = struct.unpack("<d", chance.getrandbits(64).to_bytes(8, "little"))[0]
        if math.isfinite(number):
            return number


def hostile(chance: random.Random, depth: int = 0) -> Json:
    kind = chance.random()
    if depth < 4 and kind < (0.9 if depth == 0 else 0.35):
        size = int(chance.random() * 4.5)
        if kind % 0.02 < 0.013:
            return {hostile_text(chance): hostile(chance, depth + 1) for _ in range(size)}
        return [hostile(chance, depth + 1) for _ in range(size)]
    match chance.randrange(10):
        case 0:
            return chance.choice((None, True, False))
        case 1:
            return chance.choice(EDGES)
        case 2:
            return chance.getrandbits(chance.randrange(1, 54)) * chance.choice((1, -1))
        case 3:
            return any_double(chance)
        case 4:
            return round(chance.uniform(-1e6, 1e6), chance.randrange(6))
        case 5:
            return float(chance.getrandbits(chance.randrange(1, 80)))
        case _:
            return hostile_text(chance)


def respelled(chance: random.Random, value: Json) -> bytes:
    """The same value as another client would send it: key order, spaces and escapes left to chance."""
    if isinstance(value, dict):
        value = dict(sorted(value.items(), key=lambda _: chance.random()))
    separators = chance.choice(((",", ":"), (", ", ": "), (" ,\n", "\t:\r\n ")))
    return json.dumps(value, ensure_ascii=chance.random() < 0.5, separators=separators).encode()


@pytest.mark.req("ORD-06", "ORD-07")
def test_agrees_with_the_rfc8785_library_on_any_value() -> None:
    compare_with_rfc8785(10_000)


def compare_with_rfc8785(count: int) -> None:
    chance = random.Random(8785)
    for index in range(count):
        value = hostile(chance)
        expected = rfc8785.dumps(value)
        assert canonical(value) == expected
        raw = respelled(chance, value) if index % 2 else expected
        assert parse_canonical(raw) == (value, expected)


@pytest.mark.req("ORD-06", "ORD-07")
def test_agrees_with_the_rfc8785_library_on_plain_numbers() -> None:
    chance = random.Random(754)
    numbers = [any_double(chance) for _ in range(10_000)]
    numbers += [math.nextafter(10.0**power, toward) for power in range(-323, 309) for toward in (0, 1e308)]
    numbers += [10.0**power for power in range(-323, 309)] + [2.0**power for power in range(-1074, 1024)]
    for number in numbers:
        expected = rfc8785.dumps(number)
        assert canonical(number) == expected
        assert float(expected) == number
        assert parse_canonical(expected) == (number, expected)


class Unfit(ValueError):
    """What the strict reader refuses."""


def read_number(literal: str) -> float:
    number = float(literal)
    if math.isinf(number) or (number == 0 and re.match("[-.0]*[1-9]", literal)):
        raise Unfit(literal)
    if number == 0:
        return number
    exact = Decimal(literal)
    digits = "".join(map(str, exact.as_tuple().digits)).strip("0")
    whole = exact == exact.to_integral_value()
    if exact in (Decimal(number), Decimal(repr(number))) or (not whole and len(digits) <= 17):
        return number
    raise Unfit(literal)


def read_object(pairs: list[tuple[str, Json]]) -> Json:
    if len({key for key, _ in pairs}) != len(pairs):
        raise Unfit("duplicate")
    return dict(pairs)


def read_constant(name: str) -> Json:
    raise Unfit(name)


def read_strictly(raw: bytes) -> bytes | None:
    """Canonical bytes by other means, or None where the text must be refused."""
    try:
        value = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=read_object,
            parse_int=read_number,
            parse_float=read_number,
            parse_constant=read_constant,
        )
        return rfc8785.dumps(value)
    except ValueError:
        return None


def mangled(chance: random.Random, raw: bytes) -> bytes:
    """JSON text after a small accident: bytes changed, dropped, repeated, or a morsel put in."""
    morsels = (
        b"0",
        b"9",
        b".",
        b"e",
        b"E-3",
        b"-",
        b'"',
        b"\\",
        b"\\u003a",
        b"\\ud83d",
        b":",
        b",",
        b'"a":1,',
        b" ",
        b"\xee",
    )
    data = bytearray(raw)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(4):
            case 0:
                data[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del data[at : at + chance.randrange(1, 3)]
            case 2:
                data[at:at] = data[at : at + chance.randrange(1, 20)]
            case _:
                data[at:at] = chance.choice(morsels)
    return bytes(data)


@pytest.mark.req("ORD-07")
def test_agrees_with_a_strict_reader_on_damaged_text() -> None:
    compare_damaged_text(8_000)


def compare_damaged_text(count: int) -> None:
    chance = random.Random(8259)
    refused = 0
    for _ in range(count):
        raw = mangled(chance, respelled(chance, hostile(chance)))
        expected = read_strictly(raw)
        if expected is not None:
            assert parse_canonical(raw)[1] == expected
            continue
        refused += 1
        with pytest.raises(NotCanonical) as caught:
            parse_canonical(raw)
        assert f"{caught.value.field}: {caught.value.reason}".encode()
    assert 0.1 * count < refused < 0.96 * count


@pytest.mark.req("ORD-07")
def test_agrees_with_a_strict_reader_on_number_literals() -> None:
    compare_number_literals(4_000)


def compare_number_literals(count: int) -> None:
    chance = random.Random(17)

    def literals() -> Iterator[str]:
        for _ in range(count):
            digits = str(chance.getrandbits(chance.randrange(1, 90)))
            point = chance.randrange(len(digits) + 1)
            fraction = f".{digits[point:]}" if point < len(digits) else ""
            exponent = f"e{chance.randrange(-340, 330)}" if chance.random() < 0.3 else ""
            yield f"{chance.choice(('', '-'))}{int(digits[:point] or 0)}{fraction}{exponent}"
        for _ in range(count // 2):
            number = any_double(chance)
            yield chance.choice((f"{number:.16e}", f"{number:.17e}", f"{number:.15g}", str(Decimal(number))))

    for literal in literals():
        for raw in (literal.encode(), b'{"x":[%b,"e"]}' % literal.encode()):
            expected = read_strictly(raw)
            if expected is None:
                with pytest.raises(NotCanonical):
                    parse_canonical(raw)
            else:
                assert parse_canonical(raw)[1] == expected


ES6 = """
const view = new DataView(new ArrayBuffer(8));
const lines = require("fs").readFileSync(0, "utf8").trim().split("\\n");
const text = (bits) => { view.setBigUint64(0, BigInt("0x" + bits)); return String(view.getFloat64(0)); };
process.stdout.write(lines.map(text).join("\\n"));
"""


@pytest.mark.req("ORD-06")
def test_numbers_are_what_javascript_prints() -> None:
    chance = random.Random(262)
    numbers = [any_double(chance) for _ in range(20_000)]
    numbers += [chance.uniform(-1, 1) * 10.0 ** chance.randrange(-10, 25) for _ in range(20_000)]
    ours = [canonical(number).decode() for number in numbers]
    assert [float(text) for text in ours] == numbers
    assert [Decimal(text) for text in ours] == [Decimal(repr(number)) for number in numbers]
    node = shutil.which("node")
    if node is None:
        return
    bits = "\n".join(struct.pack(">d", number).hex() for number in numbers)
    theirs = subprocess.run(
        [node, "-e", ES6], input=bits, capture_output=True, text=True, check=True, timeout=60
    )
    assert theirs.stdout.split("\n") == ours


# Properties.

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
