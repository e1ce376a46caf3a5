"""What a client is made from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from unisono.client.options import Options
from unisono.client.storefile import MEMORY
from unisono.model.loading import load_model
from unisono.model.model import Model, open_model
from unisono.protocol.partitions import normalise
from unisono.protocol.profiles import CANONICAL, PROFILES

Token: TypeAlias = str | Callable[[], str | Awaitable[str]]
"""A token, or what gives one: a plain function (called in a thread) or an async one (run on the program's loop)."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """One client: whom it talks to, as whom, about what, and where it keeps it."""

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
    if not url.startswith(("ws://", "wss://")):
        raise ValueError(f"the url of a server starts with ws:// or wss://, not {url!r}")
    if not client_id:
        raise ValueError("client_id must not be empty")
    if profile not in PROFILES:
        raise ValueError(f"profile must be one of {', '.join(PROFILES)}, not {profile!r}")
    if isinstance(partitions, str):
        raise TypeError("partitions is a list of names")
    names = None if partitions is None else tuple(dict.fromkeys(normalise([name])[0] for name in partitions))
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


def load(model: Model | Path | None) -> Model:
    """The model of a client; without one every schema and every target will do, and no schema has a meaning."""
    if model is None:
        return open_model()
    return load_model(model) if isinstance(model, Path) else model
