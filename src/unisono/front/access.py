"""Access: which partitions an identity may use (AUTHZ).

A partition is granted by the claims of the token or by the operator's ACL; either is enough (AUTHZ-01). A grant is
for reading and writing, or for reading only (AUTHZ-08). Where neither mentions the client, the configured default
decides (AUTHZ-02). Names are compared in NFC: claims and ACL are normalised when read, and callers pass normalised
partitions.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from unisono.front.auth.verify import Identity
from unisono.front.unique_names import unique_names
from unisono.protocol.partitions import NAME_BYTES_MAX, normal_start

GRANT_KEYS = ("partitions", "prefixes", "readable_partitions", "readable_partition_prefixes")
"""The keys of a table of the ACL, in the order of `Grant.of`."""


class AclError(Exception):
    """The ACL file cannot be used; the text names the file and the key."""


class Grant(msgspec.Struct, frozen=True):
    """Partitions by exact name and by prefix; the empty prefix is every partition. `readable…`: for reading only."""

    partitions: frozenset[str]
    prefixes: tuple[str, ...]
    readable_partitions: frozenset[str] = frozenset()
    readable_prefixes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        partitions: Iterable[str] = (),
        prefixes: Iterable[str] = (),
        readable_partitions: Iterable[str] = (),
        readable_prefixes: Iterable[str] = (),
    ) -> Grant:
        """Names that no partition can have are left out."""
        return cls(
            frozenset(_normal(partitions)),
            tuple(dict.fromkeys(_normal(prefixes))),
            frozenset(_normal(readable_partitions)),
            tuple(dict.fromkeys(_normal(readable_prefixes))),
        )

    def joined(self, other: Grant) -> Grant:
        return Grant(
            self.partitions | other.partitions,
            tuple(dict.fromkeys(self.prefixes + other.prefixes)),
            self.readable_partitions | other.readable_partitions,
            tuple(dict.fromkeys(self.readable_prefixes + other.readable_prefixes)),
        )


class Acl:
    """What the operator grants, per client and to everyone.

    Invariant: the grant of a named client includes the grant of everyone, so one lookup is enough.
    """

    def __init__(self, clients: Mapping[str, Grant], everyone: Grant | None = None) -> None:
        self._everyone = everyone
        self._clients = {
            client_id: grant if everyone is None else grant.joined(everyone)
            for client_id, grant in clients.items()
        }

    def grant(self, client_id: str) -> Grant | None:
        """The grant of a client; `None` when the ACL does not mention it."""
        return self._clients.get(client_id, self._everyone)

    @classmethod
    def load(cls, path: str | Path) -> Acl:
        """An ACL from a `.toml` or `.json` file with the tables `clients.<client_id>` and `everyone`."""
        document = _table(_document(Path(path)), f"{path}", {"clients", "everyone"})
        clients = _table(document.get("clients", {}), f"{path}: clients")
        if "" in clients:
            raise AclError(f"{path}: clients: a client_id is never empty")
        return cls(
            {name: _grant(entry, f'{path}: clients."{name}"') for name, entry in clients.items()},
            _grant(document["everyone"], f"{path}: everyone") if "everyone" in document else None,
        )


class Access:
    """Decides which partitions an identity may read, and which it may read and write."""

    def __init__(self, acl: Acl | None = None, default: Literal["deny", "allow"] = "deny") -> None:
        self._acl = acl
        self._allow_by_default = default == "allow"

    def replace(self, acl: Acl | None) -> None:
        """Another ACL counts from now on."""
        self._acl = acl

    def denied(self, identity: Identity, partitions: Sequence[str]) -> list[str]:
        """Those of `partitions`, already in NFC, that the identity may not write, in their order."""
        grant = self._grant(identity)
        if grant is None:
            return [] if self._allow_by_default else list(partitions)
        return [
            name
            for name in partitions
            if not (
                name in identity.partitions
                or name in grant.partitions
                or name.startswith(identity.prefixes)
                or name.startswith(grant.prefixes)
            )
        ]

    def denied_reading(self, identity: Identity, partitions: Sequence[str]) -> list[str]:
        """Those of `partitions`, already in NFC, that the identity may not even read, in their order (AUTHZ-08)."""
        denied = self.denied(identity, partitions)
        grant = self._grant(identity)
        if not denied or grant is None:
            return denied
        return [
            name
            for name in denied
            if not (
                name in identity.readable_partitions
                or name in grant.readable_partitions
                or name.startswith(identity.readable_prefixes)
                or name.startswith(grant.readable_prefixes)
            )
        ]

    def _grant(self, identity: Identity) -> Grant | None:
        """What the ACL grants beside the token; None when neither mentions the client."""
        grant = self._acl.grant(identity.principal) if self._acl is not None else None
        return _NOTHING if grant is None and identity.has_scope else grant


def _normal(names: Iterable[str]) -> Iterable[str]:
    return (name for name in map(normal_start, names) if name is not None)


_NOTHING = Grant.of()


def _document(path: Path) -> object:
    try:
        text = path.read_text(encoding="utf-8")
        match path.suffix.lower():
            case ".toml":
                return tomllib.loads(text)
            case ".json":
                # Of a key that comes twice one grant would be lost.
                document: object = json.loads(text, object_pairs_hook=unique_names)
                return document
            case _:
                raise AclError(f"{path}: an ACL file ends in .toml or .json")
    except OSError as error:
        raise AclError(f"{path}: cannot be read: {error.strerror or type(error).__name__}") from None
    except UnicodeDecodeError:
        raise AclError(f"{path}: is not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise AclError(f"{path}: cannot be parsed: {error}") from None


def _table(value: object, where: str, known: frozenset[str] | set[str] | None = None) -> dict[str, object]:
    if not isinstance(value, dict):
        raise AclError(f"{where}: must be a table")
    for name in value:
        if known is not None and name not in known:
            raise AclError(f"{where}: unknown key {name!r}; known are {', '.join(sorted(known))}")
    return value


def _grant(value: object, where: str) -> Grant:
    table = _table(value, where, set(GRANT_KEYS))
    lists = {key: _strings(table.get(key, []), f"{where}.{key}") for key in GRANT_KEYS}
    for names, prefixes in (
        ("partitions", "prefixes"),
        ("readable_partitions", "readable_partition_prefixes"),
    ):
        if "" in lists[names]:
            raise AclError(f'{where}.{names}: a partition is never empty; everything is {prefixes} = [""]')
    return Grant.of(*(lists[key] for key in GRANT_KEYS))


def _strings(value: object, where: str) -> list[str]:
    if not isinstance(value, list):
        raise AclError(f"{where}: must be an array of strings")
    for index, item in enumerate(value):
        if not isinstance(item, str):
            raise AclError(f"{where}[{index}]: must be a string")
        if normal_start(item) is None:
            raise AclError(
                f"{where}[{index}]: no partition is called so: at most {NAME_BYTES_MAX} bytes of text"
            )
    return value
