"""What a client is made from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

import msgspec

from unisono.client.options import Options
from unisono.client.store.file import MEMORY
from unisono.client.validation import partition_name
from unisono.model.load import load_model
from unisono.model.model import Model, open_model
from unisono.protocol.identities import client_id_fault
from unisono.protocol.profiles import CANONICAL, PROFILES

Token: TypeAlias = str | Callable[[], str | Awaitable[str]]
"""A token, or what gives one: a plain function (called in a thread) or an async one (run on the program's loop)."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """One client: its server, its identity, its partitions and its store."""

    url: str
    token: Token
    client_id: str
    store: str = MEMORY
    partitions: tuple[str, ...] | None = None
    model: Model | Path | None = None
    profile: str = CANONICAL
    options: Options = Options()


def configure(
    url: str,
    *,
    token: Token,
    client_id: str,
    store: str | Path,
    partitions: Sequence[str] | None,
    model: Model | Path | str | None,
    profile: str,
    options: Options | None,
) -> Config:
    """Check what a program gives before anything starts."""
    _check_url(url)
    _check_who(token, client_id)
    if not isinstance(store, str | Path):
        raise TypeError(f"store is a path, not {type(store).__name__}")
    if not str(store):
        raise ValueError(f"store is the path of a file, or {MEMORY} to keep nothing")
    if options is not None and not isinstance(options, Options):
        raise TypeError(f"options are unisono.client.Options, not {type(options).__name__}")
    if profile not in PROFILES:
        raise ValueError(f"profile must be one of {', '.join(PROFILES)}, not {profile!r}")
    if isinstance(partitions, str):
        raise TypeError("partitions is a list of names")
    names = None if partitions is None else tuple(dict.fromkeys(map(partition_name, partitions)))
    return Config(
        url=url,
        token=token,
        client_id=client_id,
        store=str(store),
        partitions=names,
        model=Path(model) if isinstance(model, str) else model,
        profile=profile,
        options=options or Options(),
    )


def _check_url(url: str) -> None:
    if not isinstance(url, str):
        raise TypeError(f"the url of a server is a string, not {type(url).__name__}")
    if not url.startswith(("ws://", "wss://")):
        raise ValueError(f"the url of a server starts with ws:// or wss://, not {url!r}")
    try:
        parts = urlsplit(url)
        sound = bool(parts.hostname) and parts.port != 0 and not any(map(str.isspace, url))
    except ValueError:
        sound = False
    if not sound:
        raise ValueError(f"{url!r} is not an address like ws://127.0.0.1:8040/sync")


def _check_who(token: Token, client_id: str) -> None:
    if not isinstance(client_id, str):
        raise TypeError(f"client_id is a string, not {type(client_id).__name__}")
    if (fault := client_id_fault(client_id)) is not None:
        raise ValueError(f"client_id {fault}")
    if not (isinstance(token, str) or callable(token)):
        raise TypeError(f"token is a string or a function that gives one, not {type(token).__name__}")
    if not token:
        raise ValueError("token must not be empty")


def load(model: Model | Path | None) -> Model:
    """The model of a client; without one every schema and every target will do, and no schema has a meaning."""
    if model is None:
        return open_model()
    return load_model(model) if isinstance(model, Path) else model
