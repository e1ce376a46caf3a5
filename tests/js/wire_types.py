"""The message types of the JavaScript client, written from the Python definitions: `python -m tests.js.wire_types`.

Each struct becomes an interface, and those of the server also a row of `SHAPES`, by which the client checks what it
receives as strictly as the Python client does: a field is `name:type` where it is required, else `name:type=default`.
A type that ends in `?` may be null, which is then the default.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import inspect

from unisono.protocol import client_codec, messages
from unisono.protocol.errors import SUPPORTED_VERSIONS, WIRE_ERRORS, CloseCode
from unisono.vocabulary import FieldError

ROOT: Final = Path(__file__).parents[2]
FILE: Final = ROOT / "clients/js/packages/client/src/wire.ts"

SERVER: Final[dict[str, type[msgspec.Struct]]] = {
    "connected": client_codec.Connected,
    "event_broadcast": client_codec.CommittedEvent,
    "event_committed": client_codec.CommittedEvent,
    "sync_response": client_codec.SyncResponse,
    "submit_events_result": client_codec.SubmitResult,
    "version_changed": client_codec.VersionChanged,
    "heartbeat_ack": client_codec.HeartbeatAck,
    "error": client_codec.ErrorMessage,
}
PARTS: Final[tuple[type[msgspec.Struct], ...]] = (
    client_codec.Capabilities,
    client_codec.Limits,
    client_codec.SubmitResultItem,
    client_codec.ServerSnapshot,
)
EXTENSIONS: Final[tuple[type[msgspec.Struct], ...]] = (
    client_codec.PresenceEntry,
    client_codec.PresenceUpdate,
)
"""Checked by the extension that receives them, so that a client without it does not load their shapes."""
UNREAD: Final = {"accepted_event_types", "server_last_committed_id", "claims", "old_model_version"}
"""Fields that the client has no use for, and does not check."""
HEAD: Final = """\
// Written by `python -m tests.js.wire_types` from the message definitions in Python. Do not edit.

/** Any JSON value. */
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/** A JSON object. */
export type JsonObject = { [key: string]: Json };
"""


def text() -> str:
    """The whole file."""
    server = {kind.__name__: kind for kind in (*PARTS, *SERVER.values())}
    client = {kind.__name__: kind for kind in (messages.Item, *messages.MESSAGE_TYPES.values())}
    rows = {kind: _shape(kind) for kind in (*PARTS, *SERVER.values())}
    shapes = "".join(f"  {_name(kind)}: {shape},\n" for kind, shape in rows.items())
    sent = "".join(f"  {name}: {kind.__name__};\n" for name, kind in messages.MESSAGE_TYPES.items())
    closes = "".join(f"export const CLOSE_{code.name} = {code.value};\n" for code in CloseCode)
    version = json.dumps(SUPPORTED_VERSIONS[0])
    errors = " | ".join(json.dumps(error.code) for error in WIRE_ERRORS)
    parts = [
        HEAD,
        f"/** The protocol version of every message. */\nexport const VERSION = {version};\n",
        f"// Why a server closes a WebSocket.\n{closes}",
        f"/** The codes of an `error`. */\nexport type ErrorCode = {errors};\n",
        _interface(FieldError),
        *(_interface(kind, received=True) for kind in (*server.values(), *EXTENSIONS)),
        *(_interface(kind) for kind in client.values()),
        f"/** What a client sends, by type. */\nexport interface ClientMessages {{\n{sent}}}\n",
        "/** The fields of what a server sends: `name:type`, and `=default` where it may be left out. */\n"
        f"export const SHAPES = {{\n{shapes}}} as const;\n",
    ]
    return "\n".join(parts)


def _fields(kind: type[msgspec.Struct]) -> list[inspect.Field]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return list(info.fields)


def _is_unread(field: inspect.Field) -> bool:
    return field.encode_name in UNREAD


def _interface(kind: type[msgspec.Struct], *, received: bool = False) -> str:
    """Fields with defaults are always there once a message was decoded, and may be left out by who sends."""
    lines = [
        f"  {field.encode_name}{'' if received or field.required else '?'}: {_typescript(field.type)};"
        for field in _fields(kind)
        if not (received and _is_unread(field))
    ]
    says = (kind.__doc__ or kind.__name__).strip().splitlines()[0]
    body = "\n".join(lines)
    return (
        f"/** {says} */\nexport interface {kind.__name__} {{\n{body}\n}}\n"
        if lines
        else (f"/** {says} */\nexport type {kind.__name__} = Record<string, never>;\n")
    )


def _typescript(kind: inspect.Type) -> str:
    match kind:
        case inspect.UnionType(types=types):
            made = dict.fromkeys(_typescript(each) for each in types if not _is_unset(each))
            return " | ".join(made)
        case inspect.NoneType():
            return "null"
        case inspect.BoolType():
            return "boolean"
        case inspect.IntType() | inspect.FloatType():
            return "number"
        case inspect.StrType():
            return "string"
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return f"{_typescript(item)}[]"
        case inspect.StructType(cls=cls):
            return cls.__name__
        case inspect.DictType():
            return "JsonObject"
        case inspect.RawType() | inspect.AnyType():
            return "Json"
    raise TypeError(f"no TypeScript for {kind}")


def _is_unset(kind: inspect.Type) -> bool:
    """msgspec shows `UnsetType` as a custom type."""
    return "Unset" in repr(kind)


def _name(kind: type[msgspec.Struct]) -> str:
    """Of a shape: the type of the message that has it, else its own."""
    return next((name for name, each in SERVER.items() if each is kind), kind.__name__)


def _shape(kind: type[msgspec.Struct]) -> str:
    made = []
    for field in _fields(kind):
        if _is_unread(field):
            continue
        code, default = _code(field.type), "" if field.required else _default(field)
        if default == "null":
            code, default = code.removesuffix("?") + "?", ""
        made.append(f"{field.encode_name}:{code}{default and '='}{default}")
    return json.dumps(" ".join(made)).replace('=\\"\\"', "=''") if made else '""'


def _code(kind: inspect.Type) -> str:
    match kind:
        case inspect.UnionType(types=types):
            codes = {
                _code(each)
                for each in types
                if not isinstance(each, inspect.NoneType) and not _is_unset(each)
            }
            code = "n" if codes == {"i", "n"} else codes.pop()
            return f"{code}?" if any(isinstance(each, inspect.NoneType) for each in types) else code
        case inspect.BoolType():
            return "b"
        case inspect.IntType():
            return "i"
        case inspect.FloatType():
            return "n"
        case inspect.StrType():
            return "s"
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return f"[]{_code(item)}"
        case inspect.StructType(cls=cls):
            return _name(cls)
        case inspect.RawType() | inspect.AnyType() | inspect.DictType():
            return "*"
    raise TypeError(f"no code for {kind}")


def _default(field: inspect.Field) -> str:
    """As JSON; a field that is UNSET when it is left out is null."""
    default: Any = field.default
    return "null" if default in (msgspec.UNSET, msgspec.NODEFAULT) else json.dumps(default)


def write() -> None:
    FILE.write_text(text(), encoding="utf-8")
    sys.stdout.write(f"{FILE.relative_to(ROOT)}: written\n")


if __name__ == "__main__":
    write()
