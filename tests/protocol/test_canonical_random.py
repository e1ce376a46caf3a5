"""Random values and damaged text, compared with a library, a strict reader and JavaScript."""

from __future__ import annotations

import json
import math
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from decimal import Decimal

import pytest
import rfc8785

from tests.protocol.strict_json import CHARACTERS, read_strictly
from unisono.protocol.canonical import NotCanonical, canonical, parse_canonical
from unisono.vocabulary import Json

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
