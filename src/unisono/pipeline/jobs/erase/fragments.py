"""Short pieces of erased text, and searching for them in any bytes.

A file format may split a text (SQLite spreads a long one over pages) or keep only some of it (a snapshot has the
values, not the event). So the search is for pieces of 16 bytes: consecutive parts of an event's text, and the ends of
every longer string in it. Every offset of a buffer is tried.

A piece can also occur in an event that stays, such as "schema":"note.a"; the caller checks those events before it
calls a hit a trace.

Only *tokens* leave an executor, salted hashes of pieces: Spark writes what it sends to temporary files, and a killed
job leaves them behind.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import numpy as np
import orjson

from unisono.vocabulary import Json

PIECE_BYTES: Final = 16

SALT_BYTES: Final = 16

PIECES_MAX: Final = 200_000
"""Pieces of the events of one erasure that are searched for: some megabytes on the driver and each executor. Of more
pieces some are taken, of each event as many as of any other, and of more events one of each."""

_WINDOW_BYTES: Final = 4 << 20
"""Bytes searched at once: their rolling hashes take ten times that."""

_SLOT_BITS: Final = 22
"""Size of the filter that rules out nearly every offset with one lookup; 4 MB."""

_DIGEST_BYTES: Final = 12
_WORD: Final = np.dtype("<u8")
_TWO_WORDS: Final = struct.Struct("<QQ")
_WORD_MAX: Final = (1 << 64) - 1
_SHIFT: Final = np.uint64(64 - _SLOT_BITS)

_ESCAPED: Final = re.compile(r'["\\\x00-\x1f]')
_NAMES: Final = ("schema", "target")
"""Payload fields with names of the model, which the model's own files have too."""


def pieces_of(event: bytes) -> Iterator[bytes]:
    """The pieces of an event's text, and of the strings in it as a state has them."""
    size = PIECE_BYTES
    if len(event) >= size:
        yield from (event[start : start + size] for start in range(0, len(event) - size + 1, size))
        yield event[-size:]
    for text in _strings(event):
        for part in _ESCAPED.split(text):  # JSON escapes are spelled differently elsewhere
            encoded = part.encode("utf-8", "surrogatepass")
            if len(encoded) >= size:
                yield encoded[:size]
                yield encoded[-size:]


def token(piece: bytes, salt: bytes) -> bytes:
    """The token of a piece: the hash that is searched for, and a digest to confirm it."""
    first, second = _TWO_WORDS.unpack(piece)
    one, other = _factors(salt)
    mixed: int = (first * int(one) & _WORD_MAX) ^ (second * int(other) & _WORD_MAX)
    return mixed.to_bytes(_WORD.itemsize, "little") + _digest(piece, salt)


def sample(event: bytes, most: int) -> list[bytes]:
    """At most `most` pieces of an event, evenly over its length: of few not the beginning, which others have too.

    Its middle comes first, then the middles of both halves, and so on: fewer are the first of more.
    """
    own = list(dict.fromkeys(pieces_of(event)))
    found: dict[bytes, None] = {}
    parts = 2
    while len(found) < min(most, len(own)):
        found.update(dict.fromkeys(own[len(own) * place // parts] for place in range(1, parts, 2)))
        parts *= 2
    return list(found)[:most]


class Sample:
    """Tokens of events, taken as these are read: at most `most`, of each as many as of any other, but at least one.

    `whole`: these are all that there are. Its size is in proportion to `most` and the number of events.
    """

    def __init__(self, most: int, salt: bytes) -> None:
        self._most = most
        self._salt = salt
        self._share = max(1, most)
        self._taken: list[list[bytes]] = []
        self._count = 0
        self.whole = True

    def add(self, event: bytes) -> None:
        pieces = sample(event, self._share + 1)
        self.whole = self.whole and len(pieces) <= self._share
        self._taken.append([token(piece, self._salt) for piece in pieces[: self._share]])
        self._count += len(self._taken[-1])
        if self._count > 2 * max(self._most, len(self._taken)):
            self._limit()

    def tokens(self) -> frozenset[bytes]:
        if self._count > self._most:
            self._limit()
        return frozenset(chain.from_iterable(self._taken))

    def _limit(self) -> None:
        self._share = max(1, self._most // len(self._taken))
        self.whole = self.whole and all(len(taken) <= self._share for taken in self._taken)
        self._taken = [taken[: self._share] for taken in self._taken]
        self._count = sum(map(len, self._taken))


class Pieces:
    """Pieces by their tokens, which were made with `salt`."""

    def __init__(self, tokens: Iterable[bytes], salt: bytes) -> None:
        self.tokens = frozenset(tokens)
        self.salt = salt

    def __len__(self) -> int:
        return len(self.tokens)

    def find(self, content: Any) -> set[bytes]:
        """The tokens of the pieces that occur in these bytes."""
        finder = FragmentSearch(self)
        finder.look(content)
        return finder.found


class FragmentSearch:
    """Searches buffers for pieces, for each until it is found."""

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
                piece = bytes(data[start : start + PIECE_BYTES])
                found = keys[place].tobytes() + _digest(piece, self._pieces.salt)
                if found in self._pieces.tokens:
                    self.found.add(found)
        if len(self.found) > before:
            self._forget_found()

    def _places(self, keys: Any) -> list[int]:
        """One offset of each hash that occurs."""
        places = np.flatnonzero(self._slots[keys >> _SHIFT])
        candidates, first = np.unique(keys[places], return_index=True)
        numbers = np.minimum(np.searchsorted(self._keys, candidates), len(self._keys) - 1)
        found: list[int] = places[first[self._keys[numbers] == candidates]].tolist()
        return found

    def _forget_found(self) -> None:
        done = np.frombuffer(b"".join(token[: _WORD.itemsize] for token in self.found), _WORD)
        self._keys = np.setdiff1d(self._keys, done)
        self._slots = np.zeros(1 << _SLOT_BITS, np.bool_)
        self._slots[self._keys >> _SHIFT] = True


@lru_cache(maxsize=4)
def _factors(salt: bytes) -> tuple[Any, Any]:
    """Two random odd numbers, so that no text can be crafted to collide."""
    numbers = np.frombuffer(hashlib.blake2b(salt, digest_size=PIECE_BYTES).digest(), _WORD) | np.uint64(1)
    return numbers[0], numbers[1]


def _digest(piece: bytes, salt: bytes) -> bytes:
    return hashlib.blake2b(piece, digest_size=_DIGEST_BYTES, key=salt).digest()


def _mixed(first: Any, second: Any, factors: tuple[Any, Any]) -> Any:
    return (first * factors[0]) ^ (second * factors[1])


def _strings(event: bytes) -> Iterator[str]:
    """Every string in an event's payload, with keys, except names of the model."""
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
