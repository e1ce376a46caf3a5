"""What any bytes may do to the codec, the canonicaliser, partitions, the tree and the request for an upgrade: nothing
but what is defined.

Each target takes bytes and fails by an exception. Where a text gets through, what must hold of it is checked.
"""

from __future__ import annotations

import contextlib
import json
import random
import unicodedata
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.behaviour.server.frames import UPGRADE, UPGRADE_LINES, request
from tests.behaviour.server.mutations import corpus, mutated
from tests.model.events import PROFILE, delete, event, move, outline, push, put, tree, update
from unisono.front.http_upgrade import RefusedUpgrade, read_upgrade, refusing_answer
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


def fuzz_upgrade(data: bytes) -> None:
    """A request is refused with a status, or has one sound key, no body and no control character."""
    try:
        request = read_upgrade(data)
    except RefusedUpgrade as error:
        refused = error
    else:
        _check_upgrade(data, request.key)
        return
    assert refused.status in (400, 404, 426)
    assert refusing_answer(refused).startswith(b"HTTP/1.1 %d " % refused.status)


def _check_upgrade(data: bytes, key: bytes) -> None:
    line, *headers = data.split(b"\r\n")
    assert line.startswith((b"GET /sync HTTP/1.1", b"GET /sync?"))
    assert not data.translate(None, bytes(range(0x20, 0x100)) + b"\t\r\n").strip()
    assert data.count(b"\r") == data.count(b"\n") == len(headers)
    keys = [each for each in headers if each.lower().startswith(b"sec-websocket-key:")]
    assert len(keys) == 1
    assert len(b64decode(key, validate=True)) == 16
    assert not any(each.lower().startswith(b"transfer-encoding:") for each in headers)


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


REQUESTS: Final = [
    UPGRADE[:-4],
    request(*UPGRADE_LINES, b"Origin: https://a.example", b"Content-Length: 0", b"Cookie: a=b; c=d")[:-4],
    request(b"GET /sync?a=b HTTP/1.1", *reversed(UPGRADE_LINES[1:]), b"X-Name: \xc3\xa4")[:-4],
]
PIECES: Final = (
    b"\r\n", b"\r", b"\n", b" ", b"\t", b":", b",", b"\0", b"\x7f", b"\xff", b"Upgrade", b"websocket", b"==",
)  # fmt: skip


def _damaged_request(chance: random.Random) -> bytes:
    head = chance.choice(REQUESTS)
    for _ in range(chance.choice([0, 1, 1, 2, 5])):
        at, length = chance.randrange(len(head) + 1), chance.choice([0, 0, 1, 3, 30])
        piece = chance.choice([*PIECES, chance.randbytes(2), *head.split(b"\r\n")])
        head = head[:at] + piece + head[at + length :]
    return head


TARGETS: Final[Mapping[str, Callable[[bytes], None]]] = {
    "codec": fuzz_codec,
    "canonical": fuzz_canonical,
    "partitions": fuzz_partitions,
    "tree": fuzz_tree,
    "upgrade": fuzz_upgrade,
}
INPUTS: Final[Mapping[str, Callable[[random.Random], bytes]]] = {
    "codec": lambda chance: mutated(MESSAGES, chance),
    "canonical": lambda chance: mutated(MESSAGES, chance),
    "partitions": _names,
    "tree": lambda chance: mutated(EVENTS, chance),
    "upgrade": _damaged_request,
}


def run(target: str, first: int, count: int) -> None:
    """Inputs from seeds; a failure names the seed and shows the input."""
    for seed in range(first, first + count):
        data = INPUTS[target](random.Random(seed))
        try:
            TARGETS[target](data)
        except Exception as error:
            raise AssertionError(f"{target}, seed {seed}: {data[:500]!r}: {error!r}") from error
