"""Whether a client has the model that its server judges by."""

from __future__ import annotations

import logging
from pathlib import Path

from unisono.client.config import load
from unisono.client.sync.bootstrap import is_same_model
from unisono.model.load import ModelError
from unisono.model.model import Model

log = logging.getLogger("unisono.client")


def matching_model(
    ours: Model, source: object, version: int | None, digest: str | None
) -> Model | str | None:
    """None where `ours` is the server's model or either has none; else it is read again from its directory.

    The model read again where that is the server's now; a text for people where it still is another.
    """
    if version is None or ours.version is None or is_same_model(ours, version, digest):
        return None
    if (
        isinstance(source, Path)
        and (model := _read_again(source)) is not None
        and is_same_model(model, version, digest)
    ):
        return model
    if ours.version != version:
        return f"the server has model version {version}, this client {ours.version}"
    return (
        f"the server's model version {version} has another content (digest {str(digest)[:12]}) than this "
        f"client's ({ours.digest[:12]})"
    )


def _read_again(path: Path) -> Model | None:
    try:
        return load(path)
    except ModelError as error:
        log.warning("%s", error)
        return None
