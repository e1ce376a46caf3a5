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
import operator
import re
from typing import Final

import msgspec
import orjson

from unisono.protocol.canonical_errors import NotCanonical, too_long
from unisono.protocol.canonical_exact import parse_exact, why_refused, write_exact
from unisono.protocol.canonical_numbers import SAFE_INTEGER_MAX, all_survive, doubtful_literals, respelled
from unisono.vocabulary import Json, JsonObject

__all__ = [
    "PLACE_BYTES_MAX",
    "SAFE_INTEGER_MAX",
    "NotCanonical",
    "canonical",
    "canonical_text",
    "content_hash",
    "parse_canonical",
]

PLACE_BYTES_MAX: Final = 65_536
"""Of a text whose refusal names the place: finding it in a longer one takes longer than others may wait (LIM-07)."""

_ANY_INTEGER: Final = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_STRICT: Final = _ANY_INTEGER | orjson.OPT_STRICT_INTEGER
_SORTED: Final = orjson.OPT_SORT_KEYS
_STRICT_SORTED: Final = _STRICT | _SORTED
_dumps = orjson.dumps
_loads = orjson.loads  # msgspec needs 10 µs for each 5e-324, which a hostile message can repeat
_pack = msgspec.msgpack.Encoder().encode
_sha256 = hashlib.sha256
_utf_16 = operator.methodcaller("encode", "utf-16-be")

_BEYOND_BMP: Final = re.compile(rb"[\xf0-\xf4]")
_PACKED_NON_FINITE: Final = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
_NUMBERS_ONLY: Final = bytes(byte if byte in b"+-.0123456789Ee" else 0x20 for byte in range(256))
_ESCAPE: Final = re.compile(rb"\\.", re.DOTALL)
_STRING: Final = re.compile(rb'("(?:[^"\\]++|\\.)*+")', re.DOTALL)


def canonical(value: Json) -> bytes:
    """The canonical bytes of a decoded value; raises `NotCanonical` when it has none."""
    try:
        text = _sorted_text(value)
        packed = _pack(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return write_exact(value)
    if 0xCB in packed and _floats_in_doubt(_numbers(text), packed):
        return write_exact(value)
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
        return parse_exact(raw)
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
    return parse_exact(raw) if doubt else (value, text)


def canonical_text(raw: bytes, bytes_max: int) -> bytes:
    """The canonical bytes of one JSON text from outside, `bytes_max` at most; `NotCanonical` when it has none.

    They may be several times as long as the text: `1e20` is written with all its digits.
    """
    text = _quick_text(raw, bytes_max)
    if text is None:
        if len(raw) > PLACE_BYTES_MAX:
            raise why_refused(raw)
        _, text = parse_exact(raw)
    if len(text) > bytes_max:
        raise too_long(len(text), bytes_max)
    return text


def content_hash(event: bytes, partitions: bytes) -> bytes:
    """SHA-256 of canonical `{"event": …, "partitions": …}`, from its parts' canonical bytes (ORD-06)."""
    return _sha256(b'{"event":%b,"partitions":%b}' % (event, partitions)).digest()


def _sorted_text(value: Json) -> bytes:
    """As orjson writes it, with the keys of every object in the RFC's order."""
    return _in_rfc_order(_dumps(value, None, _STRICT | _SORTED), _STRICT)


def _in_rfc_order(text: bytes, options: int) -> bytes:
    """A text that orjson has sorted, with its keys in the RFC's order."""
    if (0xEE in text or 0xEF in text) and _BEYOND_BMP.search(text):
        return _dumps(_decode_in_order(text.decode()), None, options)
    return text


def _in_order(pairs: list[tuple[str, Json]]) -> JsonObject:
    """An object with its keys in the RFC's order."""
    if len(pairs) > 1 and not "".join([name for name, _ in pairs]).isascii():
        pairs.sort(key=lambda pair: _utf_16(pair[0]))
    return dict(pairs)


_decode_in_order = json.JSONDecoder(object_pairs_hook=_in_order).decode


# Doubts of the fast path. Each may be wrong only in doubting too much.


def _floats_in_doubt(numbers: bytes, packed: bytes) -> bool:
    """Whether ES6 may spell a float differently (`1.0`, `1e+16`, `0.0000001`) or not at all (NaN)."""
    if _PACKED_NON_FINITE.search(packed):
        return True
    exponents = numbers.count(b"e") - numbers.count(b" e ")  # a lone e is what remains of true and false
    return exponents > 0 or b".0 " in numbers or b"0.000000" in numbers


def _duplicates_in_doubt(raw: bytes, text: bytes) -> bool:
    """Whether a key of `raw` was lost on the way to `text`: its colon is lost with it, and nothing adds one."""
    colons = _colons(raw)
    if 0x5C in raw:
        escapes = raw.replace(b"\\\\", b"")  # what is left of a run of backslashes begins an escape
        colons += escapes.count(b"\\u003a") + escapes.count(b"\\u003A")
    return colons != _colons(text)


def _colons(text: bytes) -> int:
    return len(text) - len(text.replace(b":", b""))  # in half the time of `count`


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
    long_integers = False
    try:
        value = _loads(raw)  # refuses what is no double (1e999), so that no number here is NaN or infinite
        try:
            text = _dumps(value, None, _STRICT_SORTED)
        except TypeError:  # too long an integer; what else there is, is raised again
            text, long_integers = _dumps(value, None, _ANY_INTEGER | _SORTED), True
        floats = 0xCB in _pack(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    if not text.isascii():
        text = _in_rfc_order(text, _ANY_INTEGER)
    if (floats or long_integers or len(raw) != len(text)) and _duplicates_in_doubt(raw, text):
        return None
    if not floats and not long_integers:
        return text
    if not _numbers_survive(raw, text):
        return None
    pieces = _STRING.split(text)
    bare = respelled(b'"'.join(pieces[::2]), long_integers)
    if bare is None:
        return None
    size = len(bare) - len(pieces) // 2 + sum(map(len, pieces[1::2]))
    if size > bytes_max:
        raise too_long(size, bytes_max)
    pieces[::2] = bare.split(b'"')
    return b"".join(pieces)


def _numbers_survive(raw: bytes, text: bytes) -> bool:
    """Whether every number of `raw` is what its double says. A spelling that canonical text shares is."""
    doubtful = doubtful_literals(_numbers(raw))
    return not doubtful or all_survive(list(doubtful - doubtful_literals(_numbers(text))))
