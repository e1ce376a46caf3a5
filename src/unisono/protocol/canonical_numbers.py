"""Numbers as RFC 8785 writes them, and whether a number of a text survives as an IEEE double (ORD-07)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

import orjson

from unisono.protocol.canonical_errors import (
    NotCanonical,
    number_changed,
    number_too_large,
    number_too_small,
)

SAFE_INTEGER_MAX: Final = 2**53 - 1
"""Up to here an integer is its own ES6 text (`Number.MAX_SAFE_INTEGER`)."""

_PLAINLY_SURVIVES: Final = re.compile(
    rb"-?[0.]*+(?:[\d.]{1,15}(?:[eE][-+]?\d++)?|(?=[\d.]{16,17}(?:[eE]|\Z))\d*\.\d*[1-9](?:[eE]-\d++)?)\Z"
)
"""Literals of at most 15 digits, and fractions of at most 17, see `_survives`."""

_SMALL: Final = re.compile(rb"[eE]-\d\d\d")
"""Of a literal that may be zero as a double though its digits are not; without an exponent it has some 300 digits."""

_EXPONENT: Final = re.compile(rb"(\d)(?:\.(\d++))?e(-[56]|\+?(?:1[6-9]|20))(?!\d)")
"""Where orjson has an exponent and ECMAScript has none."""

_SHAPES: Final = {b"-5": (b"0.0000", 0), b"-6": (b"0.00000", 0)} | {
    b"%b%d" % (sign, power): (b"", power + 1) for sign in (b"", b"+") for power in range(16, 21)
}
"""By exponent: what stands before the digits, and how many there are."""

_LONG_INTEGER: Final = re.compile(rb"(?<![\d.])(\d{16,}+)(?![.e])")
"""Integers that may be past 2^53. The sign is left out."""

_loads = orjson.loads


def integer_text(value: int) -> str:
    """An integer as ECMAScript writes its double; `NotCanonical` when no double is near enough."""
    if -SAFE_INTEGER_MAX <= value <= SAFE_INTEGER_MAX:
        return int.__repr__(value)
    try:
        number = float(value)
    except OverflowError:
        raise NotCanonical("an integer is too large for an IEEE double") from None
    text = float_text(number)
    if int(number) != value and text != str(value):
        raise number_changed(str(value), text)
    return text


def float_text(number: float) -> str:
    """Number::toString of ECMAScript, as RFC 8785 section 3.2.2.3 asks; `repr` gives the same digits."""
    if not math.isfinite(number):
        raise NotCanonical("NaN and infinity are not JSON numbers")
    if number == 0:
        return "0"
    text = repr(number)
    if "e" not in text:  # from 0.0001 up to 1e16, where ES6 needs no exponent either
        return text.removesuffix(".0")
    sign = "-" if number < 0 else ""
    digits, power = _decimal(text)
    point = len(digits) + power
    if len(digits) <= point <= 21:
        return f"{sign}{digits}{'0' * power}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{point - 1:+d}"


def parse_number(literal: str) -> int | float | NotCanonical:
    """The number that a literal's canonical form says; why there is none, where it has none."""
    number = float(literal)
    if math.isinf(number):
        return number_too_large(literal)
    if number == 0:
        if literal.lower().partition("e")[0].strip("-0."):
            return number_too_small(literal)
        return 0
    if not _survives(literal, number):
        return number_changed(literal, float_text(number))
    if number.is_integer() and abs(number) <= SAFE_INTEGER_MAX:
        return int(number)
    return number


def respelled(text: bytes, long_integers: bool) -> bytes | None:
    """A text of orjson, its strings left out, with the numbers as ECMAScript writes them.

    None when one of them, which only `long_integers` has, is not what its double says. The work is done for all
    numbers at once: a message may have a hundred thousand, all different (LIM-07).
    """
    if b".0" in text:
        for end in (b",", b"]", b"}"):
            text = text.replace(b"-0.0" + end, b"0" + end).replace(b".0" + end, end)
        text = b"0" if text == b"-0.0" else text.removesuffix(b".0")
    if b"e" in text:
        parts = _EXPONENT.split(text)
        shapes = map(_SHAPES.__getitem__, parts[3::4])
        numbers = [
            before + (first + more if more else first).ljust(width, b"0")
            for first, more, (before, width) in zip(parts[1::4], parts[2::4], shapes, strict=True)
        ]
        text = _alternating(parts[::4], numbers)
    if long_integers:
        parts = _LONG_INTEGER.split(text)
        integers = _loads(b"[%b]" % b",".join(parts[1::2]))
        numbers = [float_text(float(integer)).encode() for integer in integers]
        if integers != list(map(float, integers)) and not all_survive(parts[1::2]):
            return None
        text = _alternating(parts[::2], numbers)
    return text


def _alternating(pieces: list[bytes], between: list[bytes]) -> bytes:
    parts = [b""] * (len(pieces) + len(between))
    parts[::2], parts[1::2] = pieces, between
    return b"".join(parts)


def doubtful_literals(numbers: bytes) -> set[bytes]:
    """Those of a text's literals, separated by spaces, whose double may say something else."""
    literals = numbers.split()
    doubtful = {literal for literal in literals if len(literal) > 15}
    if _SMALL.search(numbers):
        doubtful.update(filter(_SMALL.search, literals))
    return doubtful


def all_survive(literals: Sequence[bytes]) -> bool:
    """Whether numbers of these spellings, valid JSON and finite, are still what they say as doubles."""
    numbers = _loads(b"[%b]" % b",".join(literals))
    return not any(
        not _plainly_survives(literal, number) and isinstance(parse_number(literal.decode()), NotCanonical)
        for literal, number in zip(literals, numbers, strict=True)
    )


def _plainly_survives(literal: bytes, number: float) -> bool:
    """Whether a look is enough to tell that the literal survives; `number` is exact where it is an integer."""
    if isinstance(number, int):
        return number == float(number)
    return number != 0 and _PLAINLY_SURVIVES.match(literal) is not None


def _survives(literal: str, number: float) -> bool:
    """Whether a finite, nonzero double still says what the literal said (ORD-07).

    It does when the literal is the double's shortest text (which up to 15 digits always holds), or its
    exact value, or a fraction of at most 17 digits: those tell every double apart, and writers that
    always print 17 are common.
    """
    digits, power = _decimal(literal)
    if len(digits) <= 15 or (power < 0 and len(digits) <= 17) or (digits, power) == _decimal(repr(number)):
        return True
    numerator, denominator = abs(number).as_integer_ratio()
    places = denominator.bit_length() - 1  # a double with this power of two below has as many decimals
    if places:
        return power == -places and len(digits) <= 767 and int(digits) == numerator * 5**places
    return power >= 0 and len(digits) <= 309 and int(digits) * 10**power == numerator


def _decimal(literal: str) -> tuple[str, int]:
    """A nonzero number's significant digits, and the power of ten of the last; the sign is left out."""
    mantissa, _, exponent = literal.lower().partition("e")
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    significant = digits.rstrip("0")
    power = int(exponent.lstrip("+-0") or 0)  # zeros in front could exceed what int() reads
    if exponent.startswith("-"):
        power = -power
    return significant, power - len(fraction) + len(digits) - len(significant)
