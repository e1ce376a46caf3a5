"""Short pieces of what is to be erased, and finding them in any bytes.

A file format may break a text into parts (SQLite spreads a long one over pages) or keep only some of it (a snapshot
has the values, not the event). So what is looked for are pieces of 16 bytes: an event's text cut one after the other,
and the ends of every longer string in it. Each byte of a buffer is tried as the beginning of a piece.

A piece can also stand in an event that stays, "schema":"note.a" for one; whoever finds pieces asks those events
before calling it a trace.

What leaves an executor are *tokens*, salted hashes of pieces: Spark puts what it sends into temporary files, and a
killed job leaves them behind.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import orjson

from unisono.vocabulary import Json

PIECE_BYTES: Final = 16

SALT_BYTES: Final = 16

PIECES_MAX: Final = 200_000
"""Pieces looked for in all: some megabytes on the driver and on each executor. Of more events a sample is taken."""

_WINDOW_BYTES: Final = 4 << 20
"""Searched at once: the numbers made of it take ten times that."""

_SLOT_BITS: Final = 22
"""Of the table that rules out nearly every place at the cost of one look; 4 MB."""

_DIGEST_BYTES: Final = 12
_WORD: Final = np.dtype("<u8")
_SHIFT: Final = np.uint64(64 - _SLOT_BITS)

_ESCAPED: Final = re.compile(r'["\\\x00-\x1f]')
_NAMES: Final = ("schema", "target")
"""Values of a payload that name something of the model; the model's own files say them too."""


def pieces_of(event: bytes) -> Iterator[bytes]:
    """The pieces of an event's text, and of the strings in it as a state has them."""
    size = PIECE_BYTES
    if len(event) >= size:
        yield from (event[start : start + size] for start in range(0, len(event) - size + 1, size))
        yield event[-size:]
    for text in _strings(event):
        for part in _ESCAPED.split(text):  # what JSON spells otherwise is written otherwise in other places
            encoded = part.encode("utf-8", "surrogatepass")
            if len(encoded) >= size:
                yield encoded[:size]
                yield encoded[-size:]


def token(piece: bytes, salt: bytes) -> bytes:
    """What stands for a piece: the number it is looked for by, and a digest to be sure."""
    first, second = np.frombuffer(piece, _WORD)
    with np.errstate(over="ignore"):
        key: bytes = _mixed(first, second, _factors(salt)).tobytes()
    return key + _digest(piece, salt)


def sample(texts: Sequence[bytes], most: int, salt: bytes) -> list[bytes]:
    """Tokens for pieces of these events, at most `most`: of every event as many, taken evenly over its length."""
    share = max(1, most // max(1, len(texts)))
    step = -(-len(texts) // most) if most else len(texts) + 1
    found: dict[bytes, None] = {}
    for text in texts[:: max(1, step)]:
        own = list(dict.fromkeys(pieces_of(text)))
        found.update(dict.fromkeys(own[:: -(-len(own) // share)] if own else ()))
    return [token(piece, salt) for piece in list(found)[:most]]


class Pieces:
    """Some pieces by their tokens, which were made with `salt`."""

    def __init__(self, tokens: Iterable[bytes], salt: bytes) -> None:
        self.tokens = frozenset(tokens)
        self.salt = salt

    def __len__(self) -> int:
        return len(self.tokens)

    def find(self, content: Any) -> set[bytes]:
        """The tokens of those pieces that stand anywhere in these bytes."""
        hunt = FragmentSearch(self)
        hunt.look(content)
        return hunt.found


class FragmentSearch:
    """Looks through any number of buffers for pieces, and for each only until it is found."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._factors = _factors(pieces.salt)
        self._slots = np.zeros(1 << _SLOT_BITS, np.bool_)
        numbers = b"".join(token[: _WORD.itemsize] for token in pieces.tokens)
        self._keys = np.unique(np.frombuffer(numbers, _WORD))
        self._slots[self._keys >> _SHIFT] = True
        self.found: set[bytes] = set()

    def look(self, content: Any) -> None:
        data = memoryview(content).cast("B")
        for start in range(0, len(data), _WINDOW_BYTES):
            if not len(self._keys):
                return
            self._look(data[start : start + _WINDOW_BYTES + PIECE_BYTES - 1])

    def _look(self, data: memoryview) -> None:
        size, before = _WORD.itemsize, len(self.found)
        for shift in range(size):
            count = (len(data) - shift) // size
            if count < PIECE_BYTES // size:
                break
            words = np.frombuffer(data, _WORD, count, shift)
            keys = _mixed(words[:-1], words[1:], self._factors)
            for place in self._places(keys):
                start = shift + place * size
                told = token(bytes(data[start : start + PIECE_BYTES]), self._pieces.salt)
                if told in self._pieces.tokens:
                    self.found.add(told)
        if len(self.found) > before:
            self._forget_found()

    def _places(self, keys: Any) -> list[int]:
        """Where each of the numbers looked for stands, once: of what stands there often, one is enough."""
        places = np.flatnonzero(self._slots[keys >> _SHIFT])
        candidates = keys[places]
        numbers = np.minimum(np.searchsorted(self._keys, candidates), len(self._keys) - 1)
        right = self._keys[numbers] == candidates
        one = np.full(len(self._keys), -1, np.int64)
        one[numbers[right]] = places[right]
        found: list[int] = one[one >= 0].tolist()
        return found

    def _forget_found(self) -> None:
        done = np.frombuffer(b"".join(token[: _WORD.itemsize] for token in self.found), _WORD)
        self._keys = np.setdiff1d(self._keys, done)
        self._slots = np.zeros(1 << _SLOT_BITS, np.bool_)
        self._slots[self._keys >> _SHIFT] = True


@lru_cache(maxsize=4)
def _factors(salt: bytes) -> tuple[Any, Any]:
    """Two odd numbers that nobody knows before, so that no text can be made to pass for another."""
    numbers = np.frombuffer(hashlib.blake2b(salt, digest_size=PIECE_BYTES).digest(), _WORD) | np.uint64(1)
    return numbers[0], numbers[1]


def _digest(piece: bytes, salt: bytes) -> bytes:
    return hashlib.blake2b(piece, digest_size=_DIGEST_BYTES, key=salt).digest()


def _mixed(first: Any, second: Any, factors: tuple[Any, Any]) -> Any:
    return (first * factors[0]) ^ (second * factors[1])


def _strings(event: bytes) -> Iterator[str]:
    """Every string in an event's payload, keys too, but for the names of things of the model."""
    try:
        value = orjson.loads(event)
    except ValueError:
        return
    payload = value.get("payload") if isinstance(value, dict) else value
    waiting: list[Json] = [payload]
    if isinstance(payload, dict):
        waiting = [part for name, part in payload.items() if name not in _NAMES]
    while waiting:
        current = waiting.pop()
        if isinstance(current, str):
            yield current
        elif isinstance(current, dict):
            yield from current
            waiting += current.values()
        elif isinstance(current, list):
            waiting += current
