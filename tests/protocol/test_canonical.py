"""Canonical JSON, against the RFC's own examples, its number table, two other implementations and chance.

The oracles are independent of the code under test: the `rfc8785` library writes, and `read_strictly`
below reads with the standard library and judges numbers with `Decimal`.
"""

from __future__ import annotations

import hashlib
import json
import struct
from decimal import Decimal

import pytest
import rfc8785

from unisono.protocol.canonical import NotCanonical, canonical, content_hash, parse_canonical
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


# The hash.


@pytest.mark.req("ORD-06")
def test_content_hash_is_that_of_the_whole_object() -> None:
    event: Json = {"type": "x", "payload": {"é": [1.0, None, "\U0001f602"]}}
    partitions: Json = ["b", "a", "ü"]
    whole = rfc8785.dumps({"partitions": ["b", "a", "ü"], "event": event})
    assert content_hash(canonical(event), canonical(partitions)) == hashlib.sha256(whole).digest()
    assert content_hash(b"1", b"[]") == hashlib.sha256(b'{"event":1,"partitions":[]}').digest()
    assert content_hash(b"1", b"[]") != content_hash(b"1", b"[0]")
