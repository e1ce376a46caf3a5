"""Canonical JSON (RFC 8785): the one spelling by which two payloads are compared (ORD-06, ORD-07).

Two paths lead to the same bytes. The fast one lets orjson write with sorted keys and keeps the result
when it is provably canonical; the exact one writes every value by the letter of the RFC. orjson escapes
strings exactly as the RFC does and refuses lone surrogates and integers beyond 2^53 - 1 by itself,
so only three things are left to prove:

- Floats. MessagePack marks each with the byte 0xCB, so packed bytes without it hold none. Where it occurs,
  the text of every number is looked at, and the packed bytes show NaN and infinity (orjson writes `null`).
- Key order. orjson sorts by UTF-8, the RFC by UTF-16. They disagree only between a character
  of U+E000..U+FFFF (UTF-8 lead bytes 0xEE, 0xEF) and one beyond U+FFFF (lead bytes 0xF0..0xF4). Where
  a text holds both, objects are put into order here, and orjson keeps it.
- Duplicate keys, when parsing. See `_duplicates_in_doubt`.

A doubt costs time, never bytes: it leads to the exact path.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable
from json.encoder import encode_basestring
from typing import Final, NoReturn, cast

import msgspec
import orjson

from unisono.vocabulary import Json

NESTING_MAX: Final = 254
"""Levels of arrays and objects: where orjson stops, so both paths accept the same values."""

SAFE_INTEGER_MAX: Final = 2**53 - 1
"""Up to here an integer is its own ES6 text (`Number.MAX_SAFE_INTEGER`)."""

PLACE_BYTES_MAX: Final = 65_536
"""Of a text whose refusal names the place: finding it in a longer one takes longer than others may wait (LIM-07)."""

_QUOTED_MAX: Final = 40  # characters of a literal repeated in a message: enough to recognise it

_ANY_INTEGER: Final = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_IN_ORDER: Final = _ANY_INTEGER | orjson.OPT_STRICT_INTEGER
_CONTAINERS: Final = (dict, list, tuple)
_dumps = orjson.dumps
_loads = orjson.loads  # msgspec needs 10 µs for each 5e-324, which a hostile message can repeat
_pack = msgspec.msgpack.Encoder().encode

_BEYOND_BMP: Final = re.compile(rb"[\xf0-\xf4]")
_PACKED_NON_FINITE: Final = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
_NUMBERS_ONLY: Final = bytes(byte if byte in b"+-.0123456789Ee" else 0x20 for byte in range(256))
_ESCAPE: Final = re.compile(rb"\\.", re.DOTALL)


_RESPELLED: Final = re.compile(
    rb"-?\d++(?:\.0(?![\de])|(?:\.\d++)?e(?:-[1-6](?!\d)|\+?(?:1\d|20)(?!\d)))|(?<![\d.+e-])-?\d{16,}+(?![\d.e])"
)
"""Numbers that orjson spells otherwise than ECMAScript: `1.0`, `1e-5`, `1e16`, and integers past 2^53."""

_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)


class NotCanonical(ValueError):
    """A value that RFC 8785 cannot represent; `field` is its dot path where known, else empty."""

    def __init__(self, reason: str, field: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.field = field

    def below(self, step: str | int) -> NotCanonical:
        """The same complaint, seen from the container that holds the value at `step`."""
        self.field = f"{step}.{self.field}" if self.field else str(step)
        return self


def canonical(value: Json) -> bytes:
    """The canonical bytes of a decoded value; raises `NotCanonical` when it has none."""
    try:
        text = _sorted_text(value)
        packed = _pack(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return _exact(value)
    if 0xCB in packed and _floats_in_doubt(_numbers(text), packed):
        return _exact(value)
    return text


def parse_canonical(raw: bytes) -> tuple[Json, bytes]:
    """Decode one JSON text from outside, with its canonical bytes; `NotCanonical` when it has none.

    The value follows the canonical bytes, not the spelling: `1`, `1.0` and `1e0` all give the int 1,
    and a whole number beyond 2^53 - 1 gives the float that it is.
    """
    try:
        value: Json = _loads(raw)
        text = _sorted_text(value)
        packed = _pack(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return _parse_exact(raw)
    if 0xCB in packed:
        numbers = _numbers(text)
        doubt = (
            _floats_in_doubt(numbers, packed)
            # A spelling that canonical text shares is the shortest of its double: it survives.
            or not set(_numbers(raw).split()).issubset(numbers.split())
            or _duplicates_in_doubt(raw, text)
        )
    else:
        # Without floats nothing grows from raw to canonical, so equal lengths leave no room for a lost key.
        doubt = len(raw) != len(text) and _duplicates_in_doubt(raw, text)
    return _parse_exact(raw) if doubt else (value, text)


def canonical_text(raw: bytes, bytes_max: int) -> bytes:
    """The canonical bytes of one JSON text from outside, `bytes_max` at most; `NotCanonical` when it has none.

    They may be several times as long as the text: `1e20` is written with all its digits.
    """
    text = _quick_text(raw, bytes_max)
    if text is None:
        if len(raw) > PLACE_BYTES_MAX:
            raise _refusal(raw)
        _, text = _parse_exact(raw)
    if len(text) > bytes_max:
        raise _too_long(len(text), bytes_max)
    return text


def content_hash(event: bytes, partitions: bytes) -> bytes:
    """SHA-256 of canonical `{"event": …, "partitions": …}`, from its parts' canonical bytes (ORD-06)."""
    return hashlib.sha256(b'{"event":%b,"partitions":%b}' % (event, partitions)).digest()


def _sorted_text(value: Json, options: int = _IN_ORDER) -> bytes:
    """As orjson writes it, with the keys of every object in the RFC's order."""
    text = _dumps(value, None, options | orjson.OPT_SORT_KEYS)
    if (0xEE in text or 0xEF in text) and _BEYOND_BMP.search(text):
        return _dumps(_with_keys_in_order(value), None, options)
    return text


def _with_keys_in_order(value: Json) -> Json:
    """The value with ordered objects, of every kind that orjson writes as an object or an array."""
    if isinstance(value, dict):
        names = _in_order(value) if len(value) > 1 else value
        return {name: _with_keys_in_order(value[name]) for name in names}
    if isinstance(value, list | tuple):
        return [
            _with_keys_in_order(item) if item and isinstance(item, _CONTAINERS) else item for item in value
        ]
    return value


# Doubts of the fast path. Each may be wrong only in doubting too much.


def _floats_in_doubt(numbers: bytes, packed: bytes) -> bool:
    """Whether ES6 may spell a float differently (`1.0`, `1e+16`, `0.0000001`) or not at all (NaN)."""
    if _PACKED_NON_FINITE.search(packed):
        return True
    exponents = numbers.count(b"e") - numbers.count(b" e ")  # a lone e is what remains of true and false
    return exponents > 0 or b".0 " in numbers or b"0.000000" in numbers


def _duplicates_in_doubt(raw: bytes, text: bytes) -> bool:
    """Whether a key of `raw` was lost on the way to `text`: its colon is lost with it, and nothing adds one."""
    colons = raw.count(b":")
    if 0x5C in raw:
        escapes = raw.replace(b"\\\\", b"")  # what is left of a run of backslashes begins an escape
        colons += escapes.count(b"\\u003a") + escapes.count(b"\\u003A")
    return colons != text.count(b":")


def _numbers(text: bytes) -> bytes:
    """JSON text with all but its numbers blanked out."""
    return b"".join(_pieces(text)[::2]).translate(_NUMBERS_ONLY) + b" "


def _pieces(text: bytes) -> list[bytes]:
    """JSON text cut at its quotes: every second piece is a string, without its escapes."""
    if 0x5C in text:
        text = _ESCAPE.sub(b"", text)
    return text.split(b'"')


def _quick_text(raw: bytes, bytes_max: int) -> bytes | None:
    """Canonical bytes of a text; None when it has none."""
    try:
        value = _loads(raw)  # refuses what is no double (1e999), so that no number here is NaN or infinite
        text, long_integers = _text_of_any_integers(value)
        floats = 0xCB in _pack(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    if (floats or long_integers or len(raw) != len(text)) and _duplicates_in_doubt(raw, text):
        return None
    return _respelled(raw, text, bytes_max) if floats or long_integers else text


def _text_of_any_integers(value: Json) -> tuple[bytes, bool]:
    """The sorted text, and whether it has integers that may not be their own ES6 text."""
    try:
        return _sorted_text(value), False
    except TypeError:  # too long an integer; what else there is, is raised again
        return _sorted_text(value, _ANY_INTEGER), True


def _respelled(raw: bytes, text: bytes, bytes_max: int) -> bytes | None:
    """`text` with its numbers as ECMAScript writes them; None when one of `raw` is not what its double says.

    Each spelling is looked at once, however often it comes. So a message full of numbers costs no more than others.
    """
    literals = _literals(text)
    if not _all_survive(_literals(raw) - literals):
        return None
    doubtful = list(filter(_RESPELLED.match, literals))
    if not doubtful:
        return text
    if not _all_survive({each for each in doubtful if b"." not in each and b"e" not in each}):
        return None
    spelling = {each: _float_text(float(each)).encode() for each in doubtful}
    bare = b'"'.join(_STRING.split(text))
    found = _RESPELLED.findall(bare)
    size = len(text) + sum(map(len, map(spelling.__getitem__, found))) - sum(map(len, found))
    if size > bytes_max:
        raise _too_long(size, bytes_max)
    respelled = _alternating(_RESPELLED.split(bare), map(spelling.__getitem__, found))
    return _alternating(respelled.split(b'"'), _STRING.findall(text))


def _literals(text: bytes) -> set[bytes]:
    """The spellings of a valid JSON text's numbers."""
    return set(_numbers(text).split()) - {b"e"}  # what is left of true and false


def _alternating(pieces: list[bytes], between: Iterable[bytes]) -> bytes:
    parts = [b""] * (2 * len(pieces) - 1)
    parts[::2], parts[1::2] = pieces, between
    return b"".join(parts)


def _all_survive(literals: set[bytes]) -> bool:
    """Whether numbers of these spellings, all finite, are still what they say as doubles."""
    short = [each for each in literals if len(each) <= 15]
    doubtful = [each for each in literals if len(each) > 15 and not _plainly_survives(each)]
    if not all(map(float, short)):
        doubtful += [each for each in short if not float(each)]
    return not any(isinstance(_number(each.decode()), NotCanonical) for each in doubtful)


def _plainly_survives(literal: bytes) -> bool:
    """True where up to 17 digits with a fraction alone prove it, see `_survives`."""
    return (
        literal[-1:] in b"123456789"
        and b"." in literal
        and len(literal.lstrip(b"-0.")) <= 17
        and b"e" not in literal
        and b"E" not in literal
    )


def _too_long(size: int, bytes_max: int) -> NotCanonical:
    return NotCanonical(f"has {size} bytes in canonical form, at most {bytes_max} are allowed")


# The exact path, writing.


def _exact(value: object) -> bytes:
    parts: list[str] = []
    try:
        _write(value, parts, NESTING_MAX)
    except RecursionError:
        raise _too_deep() from None
    return "".join(parts).encode()


def _write(value: object, parts: list[str], levels: int) -> None:
    if isinstance(value, str):
        parts.append(_quoted(value))
    elif value is None:
        parts.append("null")
    elif isinstance(value, bool):
        parts.append("true" if value else "false")
    elif isinstance(value, int):
        parts.append(_integer_text(value))
    elif isinstance(value, float):
        parts.append(_float_text(value))
    elif isinstance(value, dict):
        _write_object(value, parts, levels)
    elif isinstance(value, list | tuple):
        _write_array(value, parts, levels)
    elif isinstance(value, NotCanonical):
        raise value
    else:
        raise NotCanonical(f"a {type(value).__name__} is not a JSON value")


def _write_object(value: dict[object, object], parts: list[str], levels: int) -> None:
    if not levels:
        raise _too_deep()
    before = "{"
    for key in _in_order(value):
        parts += (before, _quoted(key), ":")
        try:
            _write(value[key], parts, levels - 1)
        except NotCanonical as refusal:
            raise refusal.below(key) from None
        before = ","
    parts.append("}" if value else "{}")


def _write_array(value: list[object] | tuple[object, ...], parts: list[str], levels: int) -> None:
    if not levels:
        raise _too_deep()
    before = "["
    for index, item in enumerate(value):
        parts.append(before)
        try:
            _write(item, parts, levels - 1)
        except NotCanonical as refusal:
            raise refusal.below(index) from None
        before = ","
    parts.append("]" if value else "[]")


def _in_order(keys: Iterable[object]) -> list[str]:
    """Keys as the RFC orders them: by UTF-16 code units."""
    names: list[str] = []
    for key in keys:
        if not isinstance(key, str):
            raise NotCanonical("an object key must be a string")
        names.append(key)
    if "".join(names).isascii():
        return sorted(names)
    return sorted(names, key=lambda name: name.encode("utf-16-be", "surrogatepass"))


def _quoted(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _lone_surrogate() from None
    return encode_basestring(text)


def _integer_text(value: int) -> str:
    if -SAFE_INTEGER_MAX <= value <= SAFE_INTEGER_MAX:
        return int.__repr__(value)
    try:
        number = float(value)
    except OverflowError:
        raise NotCanonical("an integer is too large for an IEEE double") from None
    text = _float_text(number)
    if int(number) != value and text != str(value):
        raise _changed(str(value), number)
    return text


def _float_text(number: float) -> str:
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


# The exact path, reading. What is refused stays in the tree as a `NotCanonical`, and the writer raises it
# with its place.


def _parse_exact(raw: bytes) -> tuple[Json, bytes]:
    try:
        tree: object = _DECODER.decode(raw.decode())
    except UnicodeDecodeError as error:
        raise NotCanonical(f"not valid UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise NotCanonical(f"not valid JSON at character {error.pos}: {error.msg}") from None
    except RecursionError:
        raise _too_deep() from None
    text = _exact(tree)
    return cast(Json, tree), text


def _refusal(raw: bytes) -> NotCanonical:
    """Why a text has no canonical form. Its first bad number is found at once, without building the tree's places."""
    try:
        value: Json = _PLACELESS_DECODER.decode(raw.decode())
        _dumps(value)
    except NotCanonical as refusal:
        return refusal
    except UnicodeDecodeError as error:
        return NotCanonical(f"not valid UTF-8 at byte {error.start}")
    except json.JSONDecodeError as error:
        return NotCanonical(f"not valid JSON at character {error.pos}: {error.msg}")
    except RecursionError:
        return _too_deep()
    except TypeError as error:
        return _lone_surrogate() if "surrogates" in str(error) else _too_deep()
    return _key_twice()


def _object(pairs: list[tuple[str, object]]) -> dict[str, object] | NotCanonical:
    members: dict[str, object] = {}
    for key, value in pairs:
        if key in members:
            return _key_twice(key.encode("utf-8", "replace").decode())
        members[key] = value
    return members


def _integer(literal: str) -> int | float | NotCanonical:
    return int(literal) if len(literal) <= 15 else _number(literal)


def _number(literal: str) -> int | float | NotCanonical:
    number = float(literal)
    if math.isinf(number):
        return NotCanonical(f"the number {_shortened(literal)} is too large for an IEEE double")
    if number == 0:
        if literal.lower().partition("e")[0].strip("-0."):
            return NotCanonical(f"the number {_shortened(literal)} is too small for an IEEE double")
        return 0
    if not _survives(literal, number):
        return _changed(literal, number)
    if number.is_integer() and abs(number) <= SAFE_INTEGER_MAX:
        return int(number)
    return number


def _raised(literal: str) -> int | float:
    number = _integer(literal) if literal.lstrip("-").isdecimal() else _number(literal)
    if isinstance(number, NotCanonical):
        raise number
    return number


def _constant(name: str) -> NotCanonical:
    return NotCanonical(f"{name} is not a JSON number")


def _constant_raised(name: str) -> NoReturn:
    raise _constant(name)


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_number, parse_constant=_constant
)


_PLACELESS_DECODER: Final = json.JSONDecoder(
    parse_int=_raised, parse_float=_raised, parse_constant=_constant_raised
)


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


def _changed(literal: str, number: float) -> NotCanonical:
    return NotCanonical(
        f"the number {_shortened(literal)} does not survive as an IEEE double: "
        f"it would become {_float_text(number)}"
    )


def _lone_surrogate() -> NotCanonical:
    return NotCanonical("a string holds a lone surrogate, which UTF-8 cannot carry")


def _key_twice(field: str = "") -> NotCanonical:
    return NotCanonical("a key appears twice in one object", field)


def _too_deep() -> NotCanonical:
    return NotCanonical("arrays and objects are nested too deeply")


def _shortened(literal: str) -> str:
    return literal if len(literal) <= _QUOTED_MAX else f"{literal[:_QUOTED_MAX]}…"
