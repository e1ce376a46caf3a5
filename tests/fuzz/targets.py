"""What any bytes may do to the codec, the canonicaliser, partitions and the tree: nothing but what is defined.

Each target takes bytes and fails by an exception. Where a text gets through, what must hold of it is checked.
"""

from __future__ import annotations

import contextlib
import json
import random
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.behaviour.server.mutations import corpus, mutated
from tests.model.events import PROFILE, delete, event, move, outline, push, put, tree, update
from unisono.protocol import client_codec, codec
from unisono.protocol.canonical import canonical, canonical_text, parse_canonical
from unisono.protocol.canonical_errors import NotCanonical
from unisono.protocol.errors import WireError
from unisono.protocol.messages import MESSAGE_TYPES
from unisono.protocol.partitions import ENTRIES_MAX, NAME_BYTES_MAX, PartitionError, normalise

BYTES_MAX: Final = 1 << 20
DEPTH_MAX: Final = 64


def fuzz_codec(data: bytes) -> None:
    """A message is decoded, or refused by an error of the wire; the client's side likewise."""
    if not _is_text(data):
        return  # the front closes with 1007 before the codec sees it
    try:
        message = codec.decode(data, depth_max=DEPTH_MAX)
    except WireError as error:
        json.dumps(error.payload()).encode()
    else:
        assert isinstance(message, tuple(MESSAGE_TYPES.values()))
        assert not codec.deeper_than(data, DEPTH_MAX)
    with contextlib.suppress(client_codec.BadMessage):
        client_codec.decode(data)


def fuzz_canonical(data: bytes) -> None:
    """Two ways to the canonical text agree, and it is its own canonical text."""
    if not _is_text(data) or codec.deeper_than(data, DEPTH_MAX):
        return
    try:
        text = canonical_text(data, BYTES_MAX)
    except NotCanonical:
        try:
            parse_canonical(data)
        except NotCanonical:
            return
        raise
    value, same = parse_canonical(data)
    assert text == same == canonical(value) == canonical_text(text, BYTES_MAX)
    json.loads(text)


def fuzz_partitions(data: bytes) -> None:
    """A set of names is refused, or in NFC, sorted, within its bounds, and normal already."""
    try:
        names = data.decode("utf-8", "surrogatepass").split("\n")
        normal = normalise(names)
    except (UnicodeDecodeError, PartitionError):
        return
    assert len(names) <= ENTRIES_MAX
    assert set(normal) == {unicodedata.normalize("NFC", name) for name in names}
    assert list(normal) == sorted(normal, key=str.encode)
    assert all(0 < len(name.encode()) <= NAME_BYTES_MAX for name in normal)
    assert normalise(normal) == normal


def fuzz_tree(data: bytes) -> None:
    """An event of any shape is refused and changes nothing, or is applied and its state survives a dump."""
    if not _is_text(data) or codec.deeper_than(data, DEPTH_MAX):
        return
    try:
        value, _ = parse_canonical(data)
    except NotCanonical:
        return
    if not isinstance(value, dict) or PROFILE.shape(value):
        return
    state = outline()
    before = json.dumps(state.dump())
    mark = state.mark()
    if PROFILE.refusals(state, value):
        assert json.dumps(state.dump()) == before
        return
    PROFILE.apply(state, value)
    dumped = state.dump()
    assert PROFILE.load(json.loads(json.dumps(dumped))).dump() == dumped
    state.rollback(mark)
    assert json.dumps(state.dump()) == before


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


MESSAGES: Final = corpus("client", "token")
EVENTS: Final[list[dict[str, Any]]] = [
    push("F", name="f"), push("G", parent="A", position={"after": "B"}), push("A"), move("D", parent="E"),
    move("A", parent="D"), move("B", position={"before": "A"}), delete("B"), delete("Z"), update("C", {"name": "c"}),
    update("D", {"x": [1, {"y": None}]}, replace=True), put("explorer.items.A.name", "x"), put("a.b", {"c": 1}),
    put("explorer", tree({"id": "Q", "children": []}, Q={})), event("unset", "explorer"),
    event("init", value={"a": {}}),
]  # fmt: skip
LETTERS: Final = (
    "ab/é\u0301\u0315\u0300\u0344\u0f73\u1100\u1161\u11a8\u212b\ufb01\u200d😀\0 .\ud800\U0001d15e\u0958"
)


def _names(chance: random.Random) -> bytes:
    lengths = chance.choices([0, 1, 2, 5, 40, 130], k=chance.choice([1, 2, 5, 64, 65]))
    names = ["".join(chance.choices(LETTERS, k=length)) for length in lengths]
    return "\n".join(names).encode("utf-8", "surrogatepass")


TARGETS: Final[Mapping[str, Callable[[bytes], None]]] = {
    "codec": fuzz_codec,
    "canonical": fuzz_canonical,
    "partitions": fuzz_partitions,
    "tree": fuzz_tree,
}
INPUTS: Final[Mapping[str, Callable[[random.Random], bytes]]] = {
    "codec": lambda chance: mutated(MESSAGES, chance),
    "canonical": lambda chance: mutated(MESSAGES, chance),
    "partitions": _names,
    "tree": lambda chance: mutated(EVENTS, chance),
}


def run(target: str, first: int, count: int) -> None:
    """Inputs from seeds; a failure names the seed and shows the input."""
    for seed in range(first, first + count):
        data = INPUTS[target](random.Random(seed))
        try:
            TARGETS[target](data)
        except Exception as error:
            raise AssertionError(f"{target}, seed {seed}: {data[:500]!r}: {error!r}") from error
